-- name: others
-- The runs beside the stream that have not ended, and whether each was seen lately.
SELECT run_id::text, holder, process, seen_at > now() - %(silence)s::interval AS fresh FROM sluice.run
WHERE pipeline = %(pipeline)s AND kind <> 'stream' AND ended_at IS NULL

-- name: end_dead
-- Ends, on paper, runs beside the stream that died.
UPDATE sluice.run SET ended_at = now(), outcome = 'died' WHERE run_id = ANY(%(dead)s::uuid[]) AND ended_at IS NULL

-- name: fence
-- Closes what runs beside the stream left open when they ended.
UPDATE sluice.attempt a SET closed_at = now(), outcome = 'fenced' FROM sluice.run r
WHERE a.pipeline = %(pipeline)s AND a.closed_at IS NULL
  AND r.run_id = a.lease_token AND r.kind <> 'stream' AND r.ended_at IS NOT NULL

-- name: lease
-- Who holds the lease, and whether it was seen lately.
SELECT r.holder, r.process, r.seen_at > now() - %(silence)s::interval AS fresh
FROM sluice.pipeline p JOIN sluice.run r ON r.run_id = p.lease_token WHERE p.name = %(pipeline)s

-- name: insert_run
-- Records a run that has just taken the lease.
INSERT INTO sluice.run (run_id, pipeline, holder, process)
VALUES (%(run)s, %(pipeline)s, %(holder)s, %(process)s)

-- name: record_refused
-- Records a run that ended before it could have the lease.
INSERT INTO sluice.run (run_id, pipeline, holder, process, ended_at, outcome, message, remedy)
SELECT %(run)s, p.name, %(holder)s, %(process)s, now(), %(outcome)s, %(message)s, %(remedy)s
FROM sluice.pipeline p WHERE p.name = %(pipeline)s

-- name: take_lease
-- Gives the lease to a run; the caller holds the row's lock.
UPDATE sluice.pipeline SET lease_token = %(run)s WHERE name = %(pipeline)s

-- name: fence_attempts
-- Closes every attempt of the stream that is still open, for its run lost the lease.
UPDATE sluice.attempt a SET closed_at = now(), outcome = 'fenced' FROM sluice.run r
WHERE a.pipeline = %(pipeline)s AND a.closed_at IS NULL AND r.run_id = a.lease_token AND r.kind = 'stream'

-- name: close_dead_runs
-- Ends, on paper, the runs that were killed.
UPDATE sluice.run SET ended_at = now(), outcome = 'lost its lease',
    message = 'It was killed or cut off, and last seen at ' || to_char(seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC'
WHERE pipeline = %(pipeline)s AND ended_at IS NULL AND run_id <> %(run)s AND kind = 'stream'

-- name: heartbeat
-- Shows that the holder lives; changes no row when the lease was taken away, or a run beside the stream was ended.
UPDATE sluice.run r SET seen_at = now() FROM sluice.pipeline p
WHERE r.run_id = %(run)s AND p.name = %(pipeline)s
  AND (p.lease_token = r.run_id OR (r.kind <> 'stream' AND r.ended_at IS NULL))

-- name: stop_asked
-- Who asked this run to stop; no row when nobody did.
SELECT r.stop_asked_by FROM sluice.run r WHERE r.run_id = %(run)s AND r.stop_asked_at IS NOT NULL

-- name: note_stop
-- Notes who asked this run to stop, unless somebody did before.
UPDATE sluice.run SET stop_asked_at = now(), stop_asked_by = %(who)s WHERE run_id = %(run)s AND stop_asked_at IS NULL

-- name: give_lease_back
-- Ends the holder's lease; changes no row when it was taken away.
UPDATE sluice.pipeline SET lease_token = NULL WHERE name = %(pipeline)s AND lease_token = %(run)s

-- name: end_run
-- Records how a run ended, and of what kind it is.
UPDATE sluice.run SET ended_at = now(), outcome = %(outcome)s, message = %(message)s, remedy = %(remedy)s,
    kind = coalesce(%(kind)s, kind)
WHERE run_id = %(run)s AND ended_at IS NULL

-- name: run_on_stream
-- Notes which stream a run works on.
UPDATE sluice.run SET stream_id = %(stream)s WHERE run_id = %(run)s

-- name: keep_state
-- Notes what a stream that has delivered nothing yet keeps between batches; changes no row when the lease is another's.
UPDATE sluice.stream s SET state = %(state)s FROM sluice.pipeline p
WHERE s.stream_id = %(stream)s AND p.name = %(pipeline)s AND p.lease_token = %(run)s
  AND NOT EXISTS (SELECT FROM sluice.delivery d WHERE d.stream_id = s.stream_id)

-- name: pending_outcomes
-- How the pipeline's runs ended since the last of them that came to its own end.
SELECT DISTINCT r.outcome FROM sluice.run r
WHERE r.pipeline = %(pipeline)s AND r.kind = 'stream' AND r.ended_at IS NOT NULL AND r.run_id <> %(run)s
  AND r.started_at > coalesce((
    SELECT max(well.started_at) FROM sluice.run well
    WHERE well.pipeline = %(pipeline)s AND well.kind = 'stream' AND well.outcome IN ('done', 'stopped', 'FilesUnread')), '-infinity')
