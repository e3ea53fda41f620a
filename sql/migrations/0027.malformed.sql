-- Where most of the malformed records of a stopped batch are, and what is wrong with them.

ALTER TABLE sluice.stopped_batch ADD COLUMN malformed text[];
COMMENT ON COLUMN sluice.stopped_batch.malformed IS 'Its malformed records by file and detail, the most frequent pairs first: one sentence each. Null: it stopped before that was kept';
