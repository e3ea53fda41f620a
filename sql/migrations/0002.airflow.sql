CREATE TABLE sluice.airflow_try (
    dag_id          text NOT NULL,
    dag_run_id      text NOT NULL,
    task_id         text NOT NULL,
    try_number      integer NOT NULL CHECK (try_number > 0),
    pipeline        text NOT NULL,
    run_type        text NOT NULL,
    clear_number    integer NOT NULL CHECK (clear_number >= 0),
    interval_start  timestamptz,
    interval_end    timestamptz,
    started_at      timestamptz NOT NULL DEFAULT now(),
    ended_at        timestamptz,
    outcome         text,
    run_id          uuid REFERENCES sluice.run (run_id),
    PRIMARY KEY (dag_id, dag_run_id, task_id, try_number)
);
CREATE INDEX airflow_try_by_run ON sluice.airflow_try (run_id);
COMMENT ON TABLE sluice.airflow_try IS 'Every try of an Airflow task to run a pipeline';
COMMENT ON COLUMN sluice.airflow_try.dag_id IS 'Airflow''s DAG';
COMMENT ON COLUMN sluice.airflow_try.dag_run_id IS 'Airflow''s run of the DAG; a name only, whose text means nothing';
COMMENT ON COLUMN sluice.airflow_try.task_id IS 'The task';
COMMENT ON COLUMN sluice.airflow_try.try_number IS 'From 1; retries and clears both count on';
COMMENT ON COLUMN sluice.airflow_try.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.airflow_try.run_type IS 'scheduled, manual, backfill or asset_triggered';
COMMENT ON COLUMN sluice.airflow_try.clear_number IS 'How often the DAG run had been cleared';
COMMENT ON COLUMN sluice.airflow_try.interval_start IS 'Start of the data interval; null where the run has none';
COMMENT ON COLUMN sluice.airflow_try.interval_end IS 'End of the data interval, exclusive';
COMMENT ON COLUMN sluice.airflow_try.started_at IS 'When the command began';
COMMENT ON COLUMN sluice.airflow_try.ended_at IS 'When it ended; null while it runs, or when it was killed';
COMMENT ON COLUMN sluice.airflow_try.outcome IS 'done, or the name of the error that ended it';
COMMENT ON COLUMN sluice.airflow_try.run_id IS 'The run that it became; null when it did not get the lease';

CREATE VIEW sluice.airflow_delivery AS
    SELECT t.dag_id, t.dag_run_id, t.task_id, t.try_number, t.run_type, t.clear_number, t.interval_start, t.interval_end,
           d.pipeline, d.delivery_id, d.stream_id, d.batch_id, d.commit_seq, d.live
    FROM sluice.airflow_try t JOIN sluice.delivery d ON d.run_id = t.run_id;
COMMENT ON VIEW sluice.airflow_delivery IS 'Which batch was delivered by which try of which Airflow run';

-- The delivery that a held row names has its pipeline checked already; a second check costs each row as much as the first.
LOCK TABLE sluice.pipeline;  -- which the constraint is of, too
ALTER TABLE sluice.quarantine DROP CONSTRAINT quarantine_pipeline_fkey;

COMMENT ON VIEW sluice.delivered_file IS 'The committed Parquet files of live deliveries; of a table that each batch replaces, those of earlier batches too (`sluice files` leaves these out)';
