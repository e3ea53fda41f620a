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
