-- How far a try's asset event tells: by the order of commits, which no clock and no run beside it changes.

ALTER TABLE sluice.airflow_try ADD COLUMN told_to bigint;
COMMENT ON COLUMN sluice.airflow_try.told_to IS 'The newest commit_seq of the pipeline when it gathered what its asset event tells of; null: it came to none';

UPDATE sluice.airflow_try t SET told_to = (
    SELECT max(d.commit_seq) FROM sluice.delivery d JOIN sluice.run r ON r.run_id = t.run_id
    WHERE d.pipeline = t.pipeline AND (d.run_id = t.run_id OR d.committed_at <= r.started_at));
CREATE INDEX airflow_try_told ON sluice.airflow_try (pipeline, told_to DESC) WHERE told_to IS NOT NULL AND outcome = 'done';
