-- name: begin
-- What is written beside a run waits for nobody: bounds its own transaction.
SELECT set_config('statement_timeout', '5s', true), set_config('lock_timeout', '2s', true)

-- name: insert_progress
-- What Spark told of batches; one that is known already stays as it is.
INSERT INTO sluice.batch_progress (stream_id, batch_id, run_id, triggered_at, input_rows, input_rate, processed_rate,
    durations_ms, phases_ms, watermark, latest, operators, state_rows, state_bytes, dropped, doubles,
    behind, ends)
VALUES (%(stream)s, %(batch)s, %(run)s, %(triggered_at)s, %(input_rows)s, %(input_rate)s, %(processed_rate)s,
    %(durations_ms)s, %(phases_ms)s, %(watermark)s, %(latest)s, %(operators)s, %(state_rows)s, %(state_bytes)s,
    %(dropped)s, %(doubles)s, %(behind)s, %(ends)s)
ON CONFLICT DO NOTHING

-- name: forget_progress
-- Takes out the stream's batches up to this one.
DELETE FROM sluice.batch_progress WHERE stream_id = %(stream)s AND batch_id <= %(batch)s

-- name: of_earlier_streams
-- How many batches are of streams that are no longer their pipeline's, and older than the horizon.
SELECT count(*) FROM sluice.batch_progress b JOIN sluice.stream s USING (stream_id) JOIN sluice.pipeline p ON p.name = s.pipeline
WHERE p.name = %(pipeline)s AND s.stream_id IS DISTINCT FROM p.current_stream AND b.triggered_at < now() - %(horizon)s

-- name: forget_earlier_streams
-- Takes these out.
DELETE FROM sluice.batch_progress b USING sluice.stream s, sluice.pipeline p
WHERE p.name = %(pipeline)s AND s.pipeline = p.name AND s.stream_id IS DISTINCT FROM p.current_stream
  AND b.stream_id = s.stream_id AND b.triggered_at < now() - %(horizon)s

-- name: running
-- The runs of a pipeline that have not ended: where, since when, the batch at work, and what they delivered so far.
SELECT r.run_id::text, r.kind, r.holder, r.started_at, r.seen_at, r.seen_at > now() - %(silence)s::interval AS fresh,
       a.batch_id, a.opened_at, d.batches, d.records, now() AS now
FROM sluice.run r
LEFT JOIN LATERAL (
    SELECT a.batch_id, a.opened_at FROM sluice.attempt a
    WHERE a.pipeline = r.pipeline AND a.closed_at IS NULL AND a.lease_token = r.run_id
    ORDER BY a.opened_at DESC LIMIT 1) a ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS batches, coalesce(sum(coalesce(d.records, d.rows_in)), 0)::bigint AS records
    FROM sluice.delivery d WHERE d.run_id = r.run_id) d
WHERE r.pipeline = %(pipeline)s AND r.ended_at IS NULL ORDER BY r.started_at LIMIT 20

-- name: latest_runs
-- A pipeline's latest runs, newest first, each with how many deliveries it made and between which numbers.
SELECT r.run_id::text, r.kind, r.started_at, r.ended_at, r.outcome, d.deliveries, d.first, d.last
FROM (SELECT * FROM sluice.run WHERE pipeline = %(pipeline)s ORDER BY started_at DESC LIMIT %(limit)s) r
CROSS JOIN LATERAL (
    SELECT count(*) AS deliveries, min(d.delivery_id) AS first, max(d.delivery_id) AS last
    FROM sluice.delivery d WHERE d.run_id = r.run_id) d
ORDER BY r.started_at DESC

-- name: newest
-- What Spark told of the current stream's newest batches, newest first, and how many of their records were late.
SELECT b.stream_id::text, b.batch_id, b.run_id::text, b.triggered_at, b.input_rows, b.input_rate, b.processed_rate,
       b.durations_ms, b.phases_ms, b.watermark, b.latest, b.operators, b.state_rows, b.state_bytes, b.dropped, b.ends, b.behind,
       b.doubles, d.late
FROM sluice.pipeline p JOIN sluice.batch_progress b ON b.stream_id = p.current_stream
LEFT JOIN sluice.delivery d ON (d.stream_id, d.batch_id) = (b.stream_id, b.batch_id)
WHERE p.name = %(pipeline)s ORDER BY b.batch_id DESC LIMIT %(limit)s
