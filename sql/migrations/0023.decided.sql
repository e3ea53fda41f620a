-- What a batch looked like when it stopped, which is all that a decision on it covers.

ALTER TABLE sluice.stopped_batch
    ADD COLUMN suite_digest text,
    ADD COLUMN lookups jsonb,
    ADD COLUMN share double precision,
    ADD COLUMN broken jsonb,
    ADD COLUMN lapsed text,
    ADD CONSTRAINT seen_wholly CHECK (num_nulls(suite_digest, lookups, broken) IN (0, 3));
COMMENT ON COLUMN sluice.stopped_batch.suite_digest IS 'SHA-256 of the suite that it was judged by; null: it stopped before that was kept, and no decision on it holds';
COMMENT ON COLUMN sluice.stopped_batch.lookups IS 'Name -> evidence of the lookup''s files, or of the model, that it was made with';
COMMENT ON COLUMN sluice.stopped_batch.share IS 'Which part of its records was to be held, from 0 to 1; null: it had none';
COMMENT ON COLUMN sluice.stopped_batch.broken IS 'Reason of a rule that holds rows -> how many rows broke it';
COMMENT ON COLUMN sluice.stopped_batch.lapsed IS 'Which decision on an earlier stop of it no longer held, and why; null: there was none';
