-- Whether a pipeline delivers by replace, which no other way of delivering can take over.

ALTER TABLE sluice.pipeline ADD COLUMN replaces boolean;
COMMENT ON COLUMN sluice.pipeline.replaces IS 'Each batch takes the place of all before it; null: not known, from before this column';
