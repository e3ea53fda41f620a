-- A pipeline that will not run again leaves the pages, with who said so and why; its next run takes it up again.

ALTER TABLE sluice.pipeline ADD COLUMN retired_at timestamptz, ADD COLUMN retired_by text, ADD COLUMN retired_why text;
COMMENT ON COLUMN sluice.pipeline.retired_at IS 'When somebody said that it will not run again; null: nobody has since its last run began';
COMMENT ON COLUMN sluice.pipeline.retired_by IS 'Who said so';
COMMENT ON COLUMN sluice.pipeline.retired_why IS 'And why';
