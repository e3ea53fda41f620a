-- name: last_run
-- How the pipeline's last ended run came out.
SELECT outcome, message, remedy, ended_at, holder FROM sluice.run
WHERE pipeline = %(pipeline)s AND ended_at IS NOT NULL AND run_id <> %(run)s AND kind = 'stream'
ORDER BY started_at DESC LIMIT 1

-- name: running
-- The runs of a pipeline that have not ended: where, since when, the batch at work, and what they delivered so far.
SELECT r.run_id::text, r.kind, r.holder, r.process, r.started_at, r.seen_at, r.seen_at > now() - %(silence)s::interval AS fresh,
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
       b.doubles, d.late, d.delivery_id, d.rows_in - d.malformed AS rows_out
FROM sluice.pipeline p JOIN sluice.batch_progress b ON b.stream_id = p.current_stream
LEFT JOIN sluice.delivery d ON (d.stream_id, d.batch_id) = (b.stream_id, b.batch_id)
WHERE p.name = %(pipeline)s ORDER BY b.batch_id DESC LIMIT %(limit)s
