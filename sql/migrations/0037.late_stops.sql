-- What is known of the watermark that stopped a batch: which records came behind it says no file of theirs.

ALTER TABLE sluice.stopped_batch ADD COLUMN behind jsonb;
COMMENT ON COLUMN sluice.stopped_batch.behind IS 'The watermark that made too many of its records late: watermark_ms, ahead (of the clock), set_by (the delivery that set it) and files (of that delivery). Null: something else stopped it, or it stopped before that was kept';
