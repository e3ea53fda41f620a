-- How far a batch was behind its topics, and what of it was a double.

ALTER TABLE sluice.batch_progress ADD COLUMN behind bigint, ADD COLUMN doubles bigint;
COMMENT ON COLUMN sluice.batch_progress.behind IS 'Records of Kafka that were there when the batch was planned and that it left to later ones; null: it is of no topic';
COMMENT ON COLUMN sluice.batch_progress.doubles IS 'Rows that all dropDuplicates left out because they had come before; null: the transform has none';
