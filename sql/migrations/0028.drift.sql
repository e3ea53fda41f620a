-- What a batch's records have beyond the schema, and what their files lack of it.

ALTER TABLE sluice.delivery ADD COLUMN unknown jsonb, ADD COLUMN missing jsonb;
COMMENT ON COLUMN sluice.delivery.unknown IS 'How many of its records have a value in a member, or a column of CSV, that the schema does not name: {"name": records}, the 100 most frequent. Null: none was found, or its format does not tell';
COMMENT ON COLUMN sluice.delivery.missing IS 'How many of its records are of a CSV file without a column of the schema, whose values then are null: {"name": records}. Null: none';

CREATE OR REPLACE VIEW sluice.quality_batch AS
    SELECT d.pipeline, d.delivery_id, d.stream_id, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live,
           q.state, q.success, d.rows_in, d.delivered, d.quarantined, d.malformed,
           d.quarantined::double precision / nullif(d.rows_in, 0) AS quarantined_share,
           d.suite_digest, d.run_id, t.dag_id, t.dag_run_id, d.records, d.late, d.dropped, d.unknown, d.missing
    FROM sluice.delivery d
    JOIN sluice.quality q USING (delivery_id)
    LEFT JOIN LATERAL (SELECT t.dag_id, t.dag_run_id FROM sluice.airflow_try t WHERE t.run_id = d.run_id LIMIT 1) t ON true;
COMMENT ON COLUMN sluice.quality_batch.unknown IS 'Records by field that the schema does not name; see sluice.delivery.unknown';
COMMENT ON COLUMN sluice.quality_batch.missing IS 'Records by column of the schema that their file does not have; see sluice.delivery.missing';
