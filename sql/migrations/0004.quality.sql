-- What the Data quality pages read, and views of the same for anyone's own dashboards.

ALTER TABLE sluice.quality
    ADD COLUMN pipeline text,
    ADD COLUMN commit_seq bigint,
    ADD COLUMN state text CHECK (state IN ('good', 'noted', 'held', 'flawed'));
UPDATE sluice.quality q SET pipeline = d.pipeline, commit_seq = d.commit_seq, state = CASE
        WHEN d.delivered > 0 AND (
            EXISTS (SELECT FROM sluice.quality_rule r WHERE r.delivery_id = d.delivery_id AND NOT r.success
                    AND r.severity <> 'info' AND r.unexpected_count IS NULL)
            OR EXISTS (SELECT FROM sluice.stopped_batch s WHERE s.decision = 'accept'
                       AND (s.stream_id, s.batch_id) = (d.stream_id, d.batch_id))) THEN 'flawed'
        WHEN d.quarantined > 0 THEN 'held'
        WHEN NOT q.success THEN 'noted'
        ELSE 'good' END
    FROM sluice.delivery d WHERE d.delivery_id = q.delivery_id;
ALTER TABLE sluice.quality
    ALTER COLUMN pipeline SET NOT NULL,
    ALTER COLUMN commit_seq SET NOT NULL,
    ALTER COLUMN state SET NOT NULL,
    ADD COLUMN good boolean NOT NULL GENERATED ALWAYS AS (state IN ('good', 'noted')) STORED;
COMMENT ON COLUMN sluice.quality.pipeline IS 'The delivery''s pipeline';
COMMENT ON COLUMN sluice.quality.commit_seq IS 'The delivery''s place in the order of the pipeline''s commits';
COMMENT ON COLUMN sluice.quality.state IS 'good: every rule held; noted: only rules of severity info failed; held: the rows that broke a rule are in quarantine, the delivered ones passed; flawed: delivered although a rule about the table failed, or because a person accepted it';
COMMENT ON COLUMN sluice.quality.good IS 'state is good or noted';

CREATE INDEX quality_in_order ON sluice.quality (pipeline, good, commit_seq);
CREATE INDEX delivery_by_run ON sluice.delivery (run_id);
CREATE INDEX stopped_by_pipeline ON sluice.stopped_batch (pipeline, stopped_at);
CREATE INDEX delivery_superseded_by ON sluice.delivery (superseded_by) WHERE superseded_by IS NOT NULL;
CREATE INDEX run_by_pipeline ON sluice.run (pipeline, started_at);

-- Held rows are browsed batch by batch; within one by their own number.
DROP INDEX sluice.quarantine_by_delivery;
CREATE INDEX quarantine_by_delivery ON sluice.quarantine (delivery_id, quarantine_id);
DROP INDEX sluice.quarantine_held;
CREATE INDEX quarantine_held ON sluice.quarantine (pipeline, delivery_id, quarantine_id) WHERE status = 'held';

CREATE VIEW sluice.quality_batch AS
    SELECT d.pipeline, d.delivery_id, d.stream_id, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live,
           q.state, q.success, d.rows_in, d.delivered, d.quarantined, d.malformed,
           d.quarantined::double precision / nullif(d.rows_in, 0) AS quarantined_share,
           d.suite_digest, d.run_id, t.dag_id, t.dag_run_id
    FROM sluice.delivery d
    JOIN sluice.quality q USING (delivery_id)
    LEFT JOIN LATERAL (SELECT t.dag_id, t.dag_run_id FROM sluice.airflow_try t WHERE t.run_id = d.run_id LIMIT 1) t ON true;
COMMENT ON VIEW sluice.quality_batch IS 'One row a delivered batch: how much came in, what became of it, and whether it is good';
COMMENT ON COLUMN sluice.quality_batch.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.quality_batch.delivery_id IS 'The delivery; delivered rows carry it as _delivery_id';
COMMENT ON COLUMN sluice.quality_batch.stream_id IS 'The stream';
COMMENT ON COLUMN sluice.quality_batch.batch_id IS 'Spark''s batch id within the stream';
COMMENT ON COLUMN sluice.quality_batch.kind IS 'stream: a batch of the stream; replay: it took the place of others; release: rows let out of quarantine';
COMMENT ON COLUMN sluice.quality_batch.commit_seq IS 'Order of the pipeline''s commits';
COMMENT ON COLUMN sluice.quality_batch.committed_at IS 'When it was delivered';
COMMENT ON COLUMN sluice.quality_batch.live IS 'False once a later delivery took its place';
COMMENT ON COLUMN sluice.quality_batch.state IS 'good, noted, held or flawed; see sluice.quality.state';
COMMENT ON COLUMN sluice.quality_batch.success IS 'Great Expectations'' verdict on the whole suite';
COMMENT ON COLUMN sluice.quality_batch.rows_in IS 'Rows of the transform''s output and the malformed records';
COMMENT ON COLUMN sluice.quality_batch.delivered IS 'Rows in both sinks';
COMMENT ON COLUMN sluice.quality_batch.quarantined IS 'Rows held back when it was delivered, the malformed ones included';
COMMENT ON COLUMN sluice.quality_batch.malformed IS 'Records that could not be parsed; part of quarantined';
COMMENT ON COLUMN sluice.quality_batch.quarantined_share IS 'quarantined / rows_in, from 0 to 1; null for a batch of no rows';
COMMENT ON COLUMN sluice.quality_batch.suite_digest IS 'SHA-256 of the suite that judged it';
COMMENT ON COLUMN sluice.quality_batch.run_id IS 'The run that delivered it';
COMMENT ON COLUMN sluice.quality_batch.dag_id IS 'Airflow''s DAG; null when no DAG started the run';
COMMENT ON COLUMN sluice.quality_batch.dag_run_id IS 'Airflow''s run of the DAG';

CREATE VIEW sluice.quality_rule_history AS
    SELECT d.pipeline, r.reason, r.number, d.delivery_id, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live,
           r.expectation, r.severity, r.success, r.element_count, r.unexpected_count,
           r.unexpected_count::double precision / nullif(r.element_count, 0) AS unexpected_share, r.evaluated
    FROM sluice.quality_rule r JOIN sluice.delivery d USING (delivery_id);
COMMENT ON VIEW sluice.quality_rule_history IS 'One row a rule and delivered batch: the trend of every rule';
COMMENT ON COLUMN sluice.quality_rule_history.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.quality_rule_history.reason IS 'The rule''s name, which quarantined rows carry';
COMMENT ON COLUMN sluice.quality_rule_history.number IS 'Its place in the suite, from 0';
COMMENT ON COLUMN sluice.quality_rule_history.delivery_id IS 'The delivery';
COMMENT ON COLUMN sluice.quality_rule_history.batch_id IS 'Spark''s batch id within the stream';
COMMENT ON COLUMN sluice.quality_rule_history.kind IS 'stream, replay or release; see sluice.delivery.kind';
COMMENT ON COLUMN sluice.quality_rule_history.commit_seq IS 'Order of the pipeline''s commits';
COMMENT ON COLUMN sluice.quality_rule_history.committed_at IS 'When the batch was delivered';
COMMENT ON COLUMN sluice.quality_rule_history.live IS 'False once a later delivery took the batch''s place';
COMMENT ON COLUMN sluice.quality_rule_history.expectation IS 'Great Expectations'' expectation type';
COMMENT ON COLUMN sluice.quality_rule_history.severity IS 'info, warning or critical';
COMMENT ON COLUMN sluice.quality_rule_history.success IS 'Whether the expectation held, mostly considered';
COMMENT ON COLUMN sluice.quality_rule_history.element_count IS 'Rows judged; null for rules about the table';
COMMENT ON COLUMN sluice.quality_rule_history.unexpected_count IS 'Rows that broke the rule; null for rules about the table';
COMMENT ON COLUMN sluice.quality_rule_history.unexpected_share IS 'unexpected_count / element_count, from 0 to 1';
COMMENT ON COLUMN sluice.quality_rule_history.evaluated IS 'pass: in the one pass; gx: by Great Expectations on the staged rows';

CREATE VIEW sluice.quality_pipeline AS
    SELECT p.name AS pipeline, last.delivery_id, last.batch_id, last.committed_at, last.state,
           turn.committed_at AS state_since,
           EXISTS (SELECT FROM sluice.stopped_batch s WHERE s.pipeline = p.name AND NOT EXISTS (
               SELECT FROM sluice.delivery d WHERE (d.stream_id, d.batch_id) = (s.stream_id, s.batch_id)))
               AS stopped
    FROM sluice.pipeline p
    LEFT JOIN LATERAL (
        SELECT d.delivery_id, d.batch_id, d.commit_seq, d.committed_at, q.state, q.good
        FROM sluice.delivery d JOIN sluice.quality q USING (delivery_id)
        WHERE d.pipeline = p.name AND d.live AND d.kind <> 'release' ORDER BY d.commit_seq DESC LIMIT 1) last ON true
    LEFT JOIN LATERAL (
        SELECT q.commit_seq FROM sluice.quality q JOIN sluice.delivery d USING (delivery_id)
        WHERE q.pipeline = p.name AND q.good = (NOT last.good) AND d.live AND d.kind <> 'release'
        ORDER BY q.commit_seq DESC LIMIT 1) other ON true
    LEFT JOIN LATERAL (
        SELECT d.committed_at FROM sluice.quality q JOIN sluice.delivery d USING (delivery_id)
        WHERE q.pipeline = p.name AND q.good = last.good AND d.live AND d.kind <> 'release'
          AND q.commit_seq > coalesce(other.commit_seq, 0) ORDER BY q.commit_seq LIMIT 1) turn ON true;
COMMENT ON VIEW sluice.quality_pipeline IS 'One row a pipeline: its last batch, whether that is good, and since when; what was released from quarantine is not counted';
COMMENT ON COLUMN sluice.quality_pipeline.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.quality_pipeline.delivery_id IS 'Its last delivery; null before the first';
COMMENT ON COLUMN sluice.quality_pipeline.batch_id IS 'The batch of its last delivery';
COMMENT ON COLUMN sluice.quality_pipeline.committed_at IS 'When that was delivered: the age of the data';
COMMENT ON COLUMN sluice.quality_pipeline.state IS 'good, noted, held or flawed; see sluice.quality.state';
COMMENT ON COLUMN sluice.quality_pipeline.state_since IS 'When the first batch was delivered since which all are good and noted, or all are held and flawed';
COMMENT ON COLUMN sluice.quality_pipeline.stopped IS 'A batch broke its contract and was not delivered since';

CREATE VIEW sluice.quarantine_count AS
    SELECT q.pipeline, q.delivery_id, q.batch_id, reason, q.status, count(*) AS rows
    FROM sluice.quarantine q, unnest(q.reasons) AS reason
    GROUP BY q.pipeline, q.delivery_id, q.batch_id, reason, q.status;
COMMENT ON VIEW sluice.quarantine_count IS 'Quarantined rows by batch, rule and status; a row that breaks two rules counts under both';
COMMENT ON COLUMN sluice.quarantine_count.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.quarantine_count.delivery_id IS 'The delivery whose batch they came in';
COMMENT ON COLUMN sluice.quarantine_count.batch_id IS 'Spark''s batch id within the stream';
COMMENT ON COLUMN sluice.quarantine_count.reason IS 'The rule that they break; malformed for records that could not be parsed';
COMMENT ON COLUMN sluice.quarantine_count.status IS 'held, released, discarded or superseded';
COMMENT ON COLUMN sluice.quarantine_count.rows IS 'How many';
