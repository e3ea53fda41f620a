-- A try of Airflow keeps why it failed, also where it ended before it had a run.

ALTER TABLE sluice.airflow_try ADD COLUMN message text, ADD COLUMN remedy text;
COMMENT ON COLUMN sluice.airflow_try.message IS 'What the error said that ended it; null where none did, or before this was kept';
COMMENT ON COLUMN sluice.airflow_try.remedy IS 'The next step that the error named; null where it named none';
