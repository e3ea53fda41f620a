-- Where tasks open the files, Spark counts parts of files, and the records are counted by what it observed.

COMMENT ON COLUMN sluice.batch_progress.input_rows IS 'Records that its sources gave';
