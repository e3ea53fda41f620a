-- A batch of which rows were left out behind the watermark is not good, and the views say how much was read.

ALTER TABLE sluice.quality
    DROP CONSTRAINT quality_state_check,
    ADD CONSTRAINT quality_state_check CHECK (state IN ('good', 'noted', 'held', 'flawed', 'partial'));
UPDATE sluice.quality q SET state = 'partial' FROM sluice.delivery d WHERE d.delivery_id = q.delivery_id AND d.dropped > 0;
COMMENT ON COLUMN sluice.quality.state IS 'good: every rule held; noted: only rules of severity info failed; held: the rows that broke a rule are in quarantine, the delivered ones passed; flawed: delivered although a rule about the table failed, or because a person accepted it; partial: rows, or groups of them, were left out behind the watermark and are in neither sink';

CREATE OR REPLACE VIEW sluice.quality_batch AS
    SELECT d.pipeline, d.delivery_id, d.stream_id, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live,
           q.state, q.success, d.rows_in, d.delivered, d.quarantined, d.malformed,
           d.quarantined::double precision / nullif(d.rows_in, 0) AS quarantined_share,
           d.suite_digest, d.run_id, t.dag_id, t.dag_run_id, d.records, d.late, d.dropped
    FROM sluice.delivery d
    JOIN sluice.quality q USING (delivery_id)
    LEFT JOIN LATERAL (SELECT t.dag_id, t.dag_run_id FROM sluice.airflow_try t WHERE t.run_id = d.run_id LIMIT 1) t ON true;
COMMENT ON COLUMN sluice.quality_batch.state IS 'good, noted, held, flawed or partial; see sluice.quality.state';
COMMENT ON COLUMN sluice.quality_batch.rows_in IS 'Rows of the transform''s output and the malformed records; of a transform that keeps state they are not what was read, see records';
COMMENT ON COLUMN sluice.quality_batch.records IS 'Of a transform that keeps state: records that were read; null: it keeps none, and rows_in tells';
COMMENT ON COLUMN sluice.quality_batch.late IS 'Records behind the watermark as they were read; see sluice.delivery.late';
COMMENT ON COLUMN sluice.quality_batch.dropped IS 'Rows, or groups of them, left out behind the watermark: in neither sink; see sluice.delivery.dropped';
COMMENT ON COLUMN sluice.quality_pipeline.state IS 'good, noted, held, flawed or partial; see sluice.quality.state';
