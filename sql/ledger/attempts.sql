-- name: open_attempt
-- Reserves the number of a delivery, before anything is written elsewhere; and tells whether its batch was tried before.
INSERT INTO sluice.attempt (pipeline, stream_id, batch_id, lease_token)
VALUES (%(pipeline)s, %(stream)s, %(batch)s, %(run)s)
RETURNING delivery_id, EXISTS (SELECT FROM sluice.attempt WHERE stream_id = %(stream)s AND batch_id = %(batch)s)

-- name: close_attempt
-- Ends an open attempt of this run; changes no row where it was closed, or is another's.
UPDATE sluice.attempt SET closed_at = statement_timestamp(), outcome = %(outcome)s
WHERE delivery_id = %(delivery)s AND lease_token = %(run)s AND closed_at IS NULL

-- name: adopt_attempt
-- Makes an attempt known again under the number that its rows carry; changes no row where it is another's, or delivered.
INSERT INTO sluice.attempt (delivery_id, pipeline, stream_id, batch_id, lease_token, adopted)
VALUES (%(delivery)s, %(pipeline)s, %(stream)s, %(batch)s, %(run)s, true)
ON CONFLICT (delivery_id) DO UPDATE
SET lease_token = excluded.lease_token, closed_at = NULL, outcome = NULL, adopted = true
WHERE attempt.pipeline = excluded.pipeline AND (attempt.adopted OR attempt.lease_token = %(was)s)
  AND attempt.outcome IS DISTINCT FROM 'delivered'

-- name: known_attempts
-- Which of these delivery numbers PostgreSQL knows, of any pipeline, and the runs that were given them; not those
-- that an interrupted recover left.
SELECT delivery_id, lease_token::text AS run_id, outcome IS NOT DISTINCT FROM 'delivered' AS delivered,
       adopted AND pipeline = %(pipeline)s AS adopted
FROM sluice.attempt
WHERE delivery_id = ANY(%(deliveries)s) AND (NOT adopted OR outcome = 'delivered')

-- name: ended_spark
-- The batch that a run attempted last and did not deliver, and how many runs ended at it because Spark had: this one, and
-- those that say so.
SELECT last.batch_id, count(DISTINCT r.run_id)
FROM (SELECT stream_id, batch_id, outcome FROM sluice.attempt
      WHERE lease_token = %(run)s ORDER BY delivery_id DESC LIMIT 1) last
JOIN sluice.attempt a USING (stream_id, batch_id)
JOIN sluice.run r ON r.run_id = a.lease_token
WHERE last.outcome IS DISTINCT FROM 'delivered'
  AND (r.run_id = %(run)s OR r.outcome IN ('SparkEnded', 'BatchEndsSpark'))
GROUP BY last.batch_id

-- name: killed_at
-- The batch of a stream's newest attempt, whose run was killed and none was refused for it since; at how many runs' tries of
-- it that has happened; and the last of these. A run that was asked to stop is none of them: whoever asked may have killed
-- it, not to wait.
SELECT last.batch_id, count(DISTINCT r.run_id), before.holder, to_char(before.seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')
FROM (SELECT batch_id, outcome, lease_token FROM sluice.attempt
      WHERE stream_id = %(stream)s AND NOT adopted ORDER BY delivery_id DESC LIMIT 1) last
JOIN sluice.run before ON before.run_id = last.lease_token
JOIN sluice.attempt a ON a.stream_id = %(stream)s AND a.batch_id = last.batch_id AND NOT a.adopted AND a.outcome = 'fenced'
JOIN sluice.run r ON r.run_id = a.lease_token
WHERE last.outcome = 'fenced' AND before.outcome = 'lost its lease' AND before.stop_asked_at IS NULL
  AND NOT EXISTS (SELECT FROM sluice.run refused WHERE refused.pipeline = %(pipeline)s AND refused.kind = 'stream'
                  AND refused.started_at > before.started_at AND refused.outcome = 'BatchEndsSpark')
  AND r.outcome = 'lost its lease' AND r.stop_asked_at IS NULL
GROUP BY last.batch_id, before.holder, before.seen_at

-- name: skip_held_numbers
-- Makes sure that no number of a held row is given out again, where the attempt with this number was lost: goes on from the
-- time in microseconds, for a clock is not restored.
SELECT setval(pg_get_serial_sequence('sluice.quarantine', 'quarantine_id'), now.us)
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) now
WHERE NOT EXISTS (SELECT FROM sluice.attempt WHERE delivery_id >= %(number)s)
  AND NOT EXISTS (SELECT FROM sluice.quarantine WHERE quarantine_id >= now.us)

-- name: skip_numbers
-- Makes sure that numbers up to this one are never given out again.
SELECT setval('sluice.delivery_number', %(number)s) FROM sluice.delivery_number
WHERE last_value < %(number)s OR NOT is_called
