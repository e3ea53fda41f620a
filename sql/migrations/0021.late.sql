-- How much of a batch came behind the watermark, as it was read.

ALTER TABLE sluice.delivery ADD COLUMN late bigint CHECK (late >= 0);
COMMENT ON COLUMN sluice.delivery.late IS 'Of a transform that keeps state: how many of its records were not newer than the watermark when they were read, or had no time. With late= they are held; else the transform was given them, and what its operators left out is in dropped. Null: its watermark is on no column of what it reads, or that was not counted';
