-- The moment of a commit whose transaction began long before, since it copied rows while others were still staged; and whether
-- a batch was tried before, which each attempt asks.

ALTER TABLE sluice.delivery ALTER committed_at SET DEFAULT statement_timestamp();
COMMENT ON COLUMN sluice.delivery.committed_at IS 'When the transaction that committed it wrote this row; for people';

CREATE INDEX attempt_of_batch ON sluice.attempt (stream_id, batch_id);
