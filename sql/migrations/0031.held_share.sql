-- Where the transform keeps state, the share that is held is of the records that were read, as what stops a batch is.

CREATE OR REPLACE VIEW sluice.quality_batch AS
    SELECT d.pipeline, d.delivery_id, d.stream_id, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live,
           q.state, q.success, d.rows_in, d.delivered, d.quarantined, d.malformed,
           d.quarantined::double precision / nullif(greatest(d.rows_in, d.records), 0) AS quarantined_share,
           d.suite_digest, d.run_id, t.dag_id, t.dag_run_id, d.records, d.late, d.dropped, d.unknown, d.missing
    FROM sluice.delivery d
    JOIN sluice.quality q USING (delivery_id)
    LEFT JOIN LATERAL (SELECT t.dag_id, t.dag_run_id FROM sluice.airflow_try t WHERE t.run_id = d.run_id LIMIT 1) t ON true;
COMMENT ON COLUMN sluice.quality_batch.quarantined_share IS 'quarantined / rows_in; of a transform that keeps state quarantined / records, where these are more';
