-- What a stream keeps between batches.

ALTER TABLE sluice.stream ADD COLUMN state text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN sluice.stream.state IS 'The operators of the transform that keep state in its checkpoint, each with its keys; none: every batch stands alone';
COMMENT ON COLUMN sluice.stream.first_batch IS 'The first batch id to be delivered: 0; 1 when recover seeded the checkpoint, or as many as had been delivered when it made the state anew';
