-- name: begin
-- A page waits for nobody, and a day on it is one of UTC: bounds its own transaction, which reads and nothing else.
SELECT set_config('statement_timeout', '10s', true), set_config('lock_timeout', '2s', true),
       set_config('timezone', 'UTC', true)

-- name: pipelines
-- The names of all pipelines that ever ran, and whether each is retired.
SELECT p.name, p.retired_at IS NOT NULL AS retired FROM sluice.pipeline p ORDER BY p.name

-- name: pipeline_rows
-- Where each of the pipelines stands: its last batch, since when it is good or not, what it waits for.
-- Held rows are counted up to a limit.
SELECT p.name AS pipeline, p.table_schema || '.' || p.table_name AS "table", p.anew, p.retired_at, p.retired_by,
       left(p.retired_why, 2000) AS retired_why, now() AS now,
       s.delivery_id, s.batch_id, d.kind, s.committed_at, s.state, s.state_since, s.standing,
       s.failing_since,
       d.rows_in, d.delivered, d.quarantined, d.malformed, d.records, d.dropped, d.unknown, d.missing,
       (SELECT count(*) FROM (SELECT FROM sluice.quarantine q WHERE q.pipeline = p.name AND q.status = 'held'
                              LIMIT %(most)s + 1) AS counted) AS held,
       lease.holder, coalesce(lease.fresh, false) AS running, ended.outcome, left(ended.message, 500) AS message,
       left(ended.remedy, 500) AS remedy, ended.ended_at,
       stop.batch_id AS stop_batch, stop.stream_id::text AS stop_stream, stop.stops, stop.stopped_at, stop.decision,
       stop.behind - 'files' AS stop_behind, coalesce(stop.stream_id = p.current_stream, true) AS stop_is_current
FROM sluice.pipeline p
JOIN sluice.quality_pipeline s ON s.pipeline = p.name
LEFT JOIN sluice.delivery d ON d.delivery_id = s.delivery_id
LEFT JOIN LATERAL (SELECT r.holder, r.seen_at > now() - %(silence)s::interval AS fresh
                   FROM sluice.run r WHERE r.run_id = p.lease_token) lease ON true
LEFT JOIN LATERAL (SELECT r.outcome, r.message, r.remedy, r.ended_at FROM sluice.run r WHERE r.pipeline = p.name AND r.ended_at IS NOT NULL AND r.kind = 'stream'
                   ORDER BY r.started_at DESC LIMIT 1) ended ON true
LEFT JOIN LATERAL (SELECT b.* FROM sluice.stopped_batch b
                   WHERE b.pipeline = p.name AND NOT EXISTS (SELECT FROM sluice.delivery d
                       WHERE (d.stream_id, d.batch_id) = (b.stream_id, b.batch_id))
                   ORDER BY b.stopped_at DESC LIMIT 1) stop ON true
WHERE p.name = ANY (%(pipelines)s) ORDER BY p.name

-- name: latest
-- The states of each pipeline's last live batches, newest first.
SELECT p.name AS pipeline, b.state
FROM unnest(%(pipelines)s::text[]) AS p (name)
CROSS JOIN LATERAL (
    SELECT d.commit_seq, q.state
    FROM sluice.delivery d JOIN sluice.quality q USING (delivery_id)
    WHERE d.pipeline = p.name AND d.live AND d.kind <> 'release' ORDER BY d.commit_seq DESC LIMIT %(limit)s) b
ORDER BY p.name, b.commit_seq DESC

-- name: batches
-- Live batches before a place in the order of commits, newest first.
SELECT d.delivery_id, d.stream_id::text, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live, d.rows_in, d.delivered, d.quarantined,
       d.malformed, d.records, d.dropped, d.suite_digest, q.state
FROM sluice.delivery d LEFT JOIN sluice.quality q USING (delivery_id)
WHERE d.pipeline = %(pipeline)s AND d.live AND d.commit_seq < %(before)s ORDER BY d.commit_seq DESC LIMIT %(limit)s

-- name: progress
-- What Spark told of the same batches, newest first, and how many of their records were late; those it told nothing of are left out.
SELECT d.delivery_id, d.batch_id, d.commit_seq, d.committed_at, b.triggered_at, b.input_rows, b.input_rate,
       b.processed_rate, b.durations_ms, b.phases_ms, b.watermark, b.state_rows, b.state_bytes, b.dropped, b.doubles, b.behind,
       d.late
FROM (SELECT d.delivery_id, d.stream_id, d.batch_id, d.commit_seq, d.committed_at, d.late FROM sluice.delivery d
      WHERE d.pipeline = %(pipeline)s AND d.live AND d.commit_seq < %(before)s
      ORDER BY d.commit_seq DESC LIMIT %(limit)s) d
JOIN sluice.batch_progress b ON (b.stream_id, b.batch_id) = (d.stream_id, d.batch_id)
ORDER BY d.commit_seq DESC

-- name: newer
-- The place after so many live batches from here on; null when there are none.
SELECT max(d.commit_seq) + 1 FROM (
    SELECT d.commit_seq FROM sluice.delivery d
    WHERE d.pipeline = %(pipeline)s AND d.live AND d.commit_seq > %(newest)s ORDER BY d.commit_seq LIMIT %(limit)s) d

-- name: older
-- The place from which those before so many live batches are shown; null when there are none.
SELECT CASE WHEN count(*) > %(limit)s THEN min(d.commit_seq) + 1 END FROM (
    SELECT d.commit_seq FROM sluice.delivery d
    WHERE d.pipeline = %(pipeline)s AND d.live AND d.commit_seq < %(before)s AND (%(releases)s OR d.kind <> 'release')
    ORDER BY d.commit_seq DESC LIMIT %(limit)s + 1) d

-- name: batches_of_run
-- What an Airflow run delivered, newest first; superseded batches too.
SELECT d.delivery_id, d.stream_id::text, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live, d.rows_in, d.delivered, d.quarantined,
       d.malformed, d.records, d.dropped, d.suite_digest, q.state
FROM (SELECT DISTINCT t.run_id FROM sluice.airflow_try t
      WHERE t.pipeline = %(pipeline)s AND t.dag_id = %(dag)s AND t.dag_run_id = %(dag_run)s AND t.run_id IS NOT NULL) t
JOIN sluice.delivery d ON d.run_id = t.run_id
LEFT JOIN sluice.quality q USING (delivery_id)
WHERE d.pipeline = %(pipeline)s AND d.commit_seq < %(before)s ORDER BY d.commit_seq DESC LIMIT %(limit)s

-- name: tries
-- The tries of an Airflow run, newest first.
SELECT t.task_id, t.try_number, t.run_type, t.started_at, t.ended_at, t.outcome, t.interval_start, t.interval_end,
       t.run_id::text, t.message, t.remedy
FROM sluice.airflow_try t
WHERE t.pipeline = %(pipeline)s AND t.dag_id = %(dag)s AND t.dag_run_id = %(dag_run)s ORDER BY t.started_at DESC LIMIT 20

-- name: rules
-- The verdict rule by rule on some deliveries. On all pages a rule is known by the first 300 characters of its id, or else
-- of its reason, by which rows are held.
SELECT r.delivery_id, r.number, left(r.reason, 300) AS reason, left(coalesce(r.rule_id, r.reason), 300) AS known_by,
       r.dimension, r.owner, r.expectation, r.severity, r.success, r.element_count, r.unexpected_count
FROM sluice.quality_rule r WHERE r.delivery_id = ANY (%(deliveries)s) ORDER BY r.delivery_id, r.number

-- name: columns
-- What the columns of some deliveries looked like.
SELECT h.delivery_id, h.batch_id, h.kind, h.commit_seq, h.committed_at, h.live, left(h.column_name, 300) AS column_name,
       h.rows_seen, h.null_share, h.minimum, h.maximum, h.mean, h.p05, h.p50, h.p95, h.distinct_estimate,
       h.earliest, h.latest, extract(epoch FROM h.age)::double precision AS age
FROM sluice.column_history h JOIN sluice.column_metric m USING (delivery_id, column_name)
WHERE h.delivery_id = ANY (%(deliveries)s) ORDER BY h.delivery_id, m.number LIMIT %(limit)s

-- name: column_of_batches
-- One column in the live batches before a place in the order of commits, newest first.
SELECT h.delivery_id, h.batch_id, h.kind, h.commit_seq, h.committed_at, h.live, left(h.column_name, 300) AS column_name,
       h.rows_seen, h.null_share, h.minimum, h.maximum, h.mean, h.p05, h.p50, h.p95, h.distinct_estimate,
       h.earliest, h.latest, extract(epoch FROM h.age)::double precision AS age
FROM (SELECT delivery_id FROM sluice.delivery
      WHERE pipeline = %(pipeline)s AND live AND kind <> 'release' AND commit_seq < %(before)s
      ORDER BY commit_seq DESC LIMIT %(limit)s) d
JOIN sluice.column_history h USING (delivery_id)
WHERE h.column_name = %(column)s ORDER BY h.commit_seq DESC

-- name: rule_history
-- One rule's verdicts before a place in the order of commits, newest first.
SELECT d.delivery_id, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live, left(r.reason, 300) AS reason, r.dimension,
       r.owner, r.expectation, r.severity, r.success, r.element_count, r.unexpected_count
FROM (SELECT * FROM sluice.delivery d WHERE d.pipeline = %(pipeline)s AND d.live AND d.commit_seq < %(before)s
      ORDER BY d.commit_seq DESC LIMIT %(limit)s) d
JOIN sluice.quality_rule r ON r.delivery_id = d.delivery_id AND left(coalesce(r.rule_id, r.reason), 300) = left(%(rule)s, 300)
ORDER BY d.commit_seq DESC

-- name: delivery
-- One delivery whole, its neighbours, and the delivery that is live in its place.
SELECT d.delivery_id, d.stream_id::text, d.batch_id, d.kind, d.released_from, d.commit_seq, d.committed_at, d.live, d.rows_in, d.delivered,
       d.quarantined, d.malformed, d.records, d.late, d.dropped, d.unknown, d.missing, d.suite_digest, d.manifest, d.snapshot_id, q.state,
       CASE WHEN octet_length(q.report) <= %(longest)s THEN q.report END AS report, octet_length(q.report) AS report_bytes,
       d.superseded_by,
       ARRAY(SELECT o.delivery_id FROM sluice.delivery o WHERE o.superseded_by = d.delivery_id
             ORDER BY o.delivery_id LIMIT 20) AS supersedes,
       ARRAY(SELECT o.delivery_id FROM sluice.delivery o WHERE o.released_from = d.delivery_id
             ORDER BY o.delivery_id DESC LIMIT 20) AS releases,
       before.delivery_id AS previous, before.suite_digest AS previous_digest, after.delivery_id AS following,
       (SELECT p.replaces IS TRUE FROM sluice.pipeline p WHERE p.name = d.pipeline) AS replaces,
       r.outcome, r.started_at, r.who, r.why AS run_why, t.dag_id, t.dag_run_id, t.task_id, t.try_number,
       stop.stops, stop.decision, stop.decided_by, stop.why, stop.decided_at
FROM sluice.delivery d
LEFT JOIN sluice.quality q USING (delivery_id)
LEFT JOIN sluice.run r ON r.run_id = d.run_id
LEFT JOIN LATERAL (SELECT t.* FROM sluice.airflow_try t WHERE t.run_id = d.run_id LIMIT 1) t ON true
LEFT JOIN sluice.stopped_batch stop ON (stop.stream_id, stop.batch_id) = (d.stream_id, d.batch_id)
LEFT JOIN LATERAL (SELECT b.delivery_id, b.suite_digest FROM sluice.delivery b
                   WHERE b.pipeline = d.pipeline AND b.live AND b.commit_seq < d.commit_seq
                   ORDER BY b.commit_seq DESC LIMIT 1) before ON true
LEFT JOIN LATERAL (SELECT b.delivery_id FROM sluice.delivery b
                   WHERE b.pipeline = d.pipeline AND b.live AND b.commit_seq > d.commit_seq
                   ORDER BY b.commit_seq LIMIT 1) after ON true
WHERE d.delivery_id = %(delivery)s AND d.pipeline = %(pipeline)s

-- name: inputs
-- The first files that a delivery was read from, and how many there are.
SELECT left(i.uri, 500) AS uri, i.size, i.mtime_ms, count(*) OVER () AS all
FROM sluice.delivery_input i WHERE i.delivery_id = %(delivery)s ORDER BY i.path LIMIT %(limit)s

-- name: models
-- Which version of each of its models scored a delivery.
SELECT model, version, threshold, made_at FROM sluice.delivery_model WHERE delivery_id = %(delivery)s ORDER BY model

-- name: ranges
-- The first ranges of offsets that a delivery read of Kafka, and how many there are.
SELECT r.topic, r.topic_id, r.partition, r.start_offset, r.end_offset, count(*) OVER () AS all
FROM sluice.delivery_range r WHERE r.delivery_id = %(delivery)s
ORDER BY r.topic, r.topic_id, r.partition, r.start_offset LIMIT %(limit)s

-- name: files
-- The first Parquet files of a delivery, and how many there are.
SELECT f.kind, left(f.path, 500) AS path, f.rows, f.bytes, count(*) OVER () AS all
FROM sluice.delivery_file f WHERE f.delivery_id = %(delivery)s ORDER BY f.kind, f.path LIMIT %(limit)s

-- name: statuses
-- What has become of a delivery's quarantined rows, and how many of them can't be released before they are corrected.
SELECT q.status, count(*) AS rows, count(*) FILTER (WHERE q.row IS NULL OR EXISTS (SELECT FROM unnest(q.reasons) AS r (reason)
                                                           WHERE r.reason LIKE 'postgres\_encoding(%%)')) AS uncorrected
FROM sluice.quarantine q WHERE q.delivery_id = %(delivery)s GROUP BY q.status

-- name: decided
-- Who released or discarded how many of a delivery's rows, the last first.
SELECT q.status, q.decided_by, left(q.why, 2000) AS why, q.decided_at, count(*) AS rows
FROM sluice.quarantine q
WHERE q.delivery_id = %(delivery)s AND q.status IN ('released', 'discarded') AND q.decided_by IS NOT NULL
GROUP BY 1, 2, 3, 4 ORDER BY q.decided_at DESC LIMIT %(limit)s

-- name: held_ids
-- One row while it is held, or all that a delivery holds; and whether each can't be released before it is corrected:
-- it never became a row, or was kept with other text than was read.
SELECT q.quarantine_id, q.row IS NULL OR EXISTS (SELECT FROM unnest(q.reasons) AS r (reason)
                                                WHERE r.reason LIKE 'postgres\_encoding(%%)') AS uncorrected
FROM sluice.quarantine q
WHERE q.pipeline = %(pipeline)s AND q.status = 'held'
  AND (q.quarantine_id = %(row)s OR q.delivery_id = %(delivery)s)
ORDER BY q.quarantine_id LIMIT %(limit)s

-- name: held_rows
-- Quarantined rows before a place (batch in the order of commits, row), newest batch first. Long values are cut.
SELECT d.commit_seq, d.committed_at, d.batch_id, d.kind, q.quarantine_id, q.delivery_id, q.status,
       ARRAY(SELECT left(one, 300) FROM unnest(q.reasons[1:20]) WITH ORDINALITY AS r (one, place) ORDER BY place) AS reasons,
       left(q.source_path, 300) AS source_path, left(q.raw, %(longest)s) AS raw, left(q.row, %(longest)s) AS "row",
       left(q.detail, 300) AS detail
FROM sluice.delivery d
CROSS JOIN LATERAL (
    SELECT q.* FROM sluice.quarantine q
    WHERE q.delivery_id = d.delivery_id AND q.pipeline = d.pipeline
      AND (%(status)s::text IS NULL OR q.status = %(status)s)
      AND (%(reason)s::text IS NULL OR EXISTS (SELECT FROM unnest(q.reasons) AS one
                                               WHERE left(one, 300) = left(%(reason)s, 300)))
      AND (d.commit_seq < %(before_commit)s OR q.quarantine_id < %(before_row)s)
    ORDER BY q.quarantine_id DESC LIMIT %(limit)s) q
WHERE d.pipeline = %(pipeline)s AND d.quarantined > 0 AND d.commit_seq <= %(before_commit)s
  AND (%(delivery)s::bigint IS NULL OR d.delivery_id = %(delivery)s)
  AND (%(reason)s::text IS NULL OR (
      SELECT bool_and(coalesce(r.unexpected_count, 1) = 0) FROM sluice.quality_rule r
      WHERE r.delivery_id = d.delivery_id AND left(r.reason, 300) = left(%(reason)s, 300)) IS NOT TRUE)
  AND (%(since)s::timestamptz IS NULL OR d.committed_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR d.committed_at < %(until)s)
ORDER BY d.commit_seq DESC, q.quarantine_id DESC LIMIT %(limit)s

-- name: reasons_of_last
-- The rules of a pipeline's last batch, to choose from.
SELECT left(r.reason, 300) AS reason FROM sluice.quality_rule r
WHERE r.delivery_id = (SELECT q.delivery_id FROM sluice.quality q WHERE q.pipeline = %(pipeline)s
                       ORDER BY q.commit_seq DESC LIMIT 1)
ORDER BY r.number LIMIT 200

-- name: held_row
-- One quarantined row whole, with the report of the batch that it came in.
SELECT q.quarantine_id, q.delivery_id, q.stream_id::text, q.batch_id, q.status, q.source_path, left(q.detail, 2000) AS detail,
       ARRAY(SELECT left(one, 300) FROM unnest(q.reasons) WITH ORDINALITY AS r (one, place) ORDER BY place) AS reasons,
       left(q.raw, %(longest)s) AS raw, length(q.raw) AS raw_length, left(q.row, %(longest)s) AS "row",
       length(q.row) AS row_length, d.committed_at, d.commit_seq, d.live, d.kind,
       q.released_by, q.decided_by, q.why, q.decided_at,
       (SELECT p.replaces IS TRUE FROM sluice.pipeline p WHERE p.name = q.pipeline) AS replaces,
       CASE WHEN octet_length(v.report) <= %(longest_report)s THEN v.report END AS report
FROM sluice.quarantine q JOIN sluice.delivery d USING (delivery_id) LEFT JOIN sluice.quality v USING (delivery_id)
WHERE q.quarantine_id = %(row)s AND q.pipeline = %(pipeline)s

-- name: held_by_reason
-- Held rows of a pipeline by rule, of its newest rows up to a limit.
SELECT left(reason, 300) AS reason, count(*) AS rows
FROM (SELECT q.reasons FROM sluice.quarantine q WHERE q.pipeline = %(pipeline)s AND q.status = 'held'
      ORDER BY q.delivery_id DESC, q.quarantine_id DESC LIMIT %(most)s) newest, unnest(newest.reasons) AS reason
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 100

-- name: open_stop
-- The newest stopped batch of a pipeline that was not delivered since, with its report.
SELECT s.stream_id::text, s.batch_id, s.stops, s.stopped_at, s.decision, s.decided_by, s.why, s.decided_at, s.lapsed, s.malformed,
       s.broken, s.behind, CASE WHEN octet_length(s.report) <= %(longest)s THEN s.report END AS report
FROM sluice.stopped_batch s
WHERE s.pipeline = %(pipeline)s AND NOT EXISTS (
    SELECT FROM sluice.delivery d WHERE (d.stream_id, d.batch_id) = (s.stream_id, s.batch_id))
ORDER BY s.stopped_at DESC LIMIT 1
