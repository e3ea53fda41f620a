-- What a stream keeps between batches.

ALTER TABLE sluice.stream ADD COLUMN state text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN sluice.stream.state IS 'The operators of the transform that keep state in its checkpoint, each with its keys; none: every batch stands alone';
COMMENT ON COLUMN sluice.stream.first_batch IS 'The first batch id to be delivered: 0; 1 when recover seeded the checkpoint, or as many as had been delivered when it made the state anew';

ALTER TABLE sluice.delivery ADD COLUMN watermark_ms bigint, ADD COLUMN time_ms bigint;
COMMENT ON COLUMN sluice.delivery.watermark_ms IS 'Of a stream that keeps state: the watermark that the batch began with, in ms since 1970';
COMMENT ON COLUMN sluice.delivery.time_ms IS 'Of a stream that keeps state: the batch''s own time, in ms since 1970';
