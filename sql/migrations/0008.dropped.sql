-- How much of a batch came behind the watermark, and was left out by Spark's operators.

ALTER TABLE sluice.delivery ADD COLUMN dropped bigint CHECK (dropped >= 0);
COMMENT ON COLUMN sluice.delivery.dropped IS 'Of a transform that keeps state: how many rows, or groups of them, its operators left out because the watermark had passed them; they are in neither sink. Null: it keeps none, or that was not counted';
