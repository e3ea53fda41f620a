-- The pages can't read declarations: which command starts a run that begins anew is kept.

ALTER TABLE sluice.pipeline ADD COLUMN anew text;
COMMENT ON COLUMN sluice.pipeline.anew IS 'The command of a run, where what is read can''t be read again and each run begins anew; null: a run goes on from the ledger';
