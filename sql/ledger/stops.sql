-- name: record_stop
-- Records a batch that broke its contract; a decision of meanwhile stays only where it was on this very stop.
INSERT INTO sluice.stopped_batch AS s (stream_id, batch_id, pipeline, stops, report, suite_digest, lookups, share, broken,
                                       lapsed, malformed, behind)
VALUES (%(stream)s, %(batch)s, %(pipeline)s, %(stops)s, %(report)s, %(suite_digest)s, %(lookups)s::jsonb, %(share)s,
        %(broken)s::jsonb, %(lapsed)s, %(malformed)s, %(behind)s::jsonb)
ON CONFLICT (stream_id, batch_id) DO UPDATE
SET stops = excluded.stops, report = excluded.report, stopped_at = now(), suite_digest = excluded.suite_digest,
    lookups = excluded.lookups, share = excluded.share, broken = excluded.broken, lapsed = excluded.lapsed,
    malformed = excluded.malformed, behind = excluded.behind,
    (decision, decided_by, why, decided_at) = (
        SELECT s.decision, s.decided_by, s.why, s.decided_at
        WHERE excluded.stops <@ s.stops
          AND (excluded.suite_digest, excluded.lookups, excluded.share, excluded.broken)
              IS NOT DISTINCT FROM (s.suite_digest, s.lookups, s.share, s.broken))

-- name: decision
-- What a person decided on a stopped batch, if anything.
SELECT decision, decided_by, why, decided_at, stops, suite_digest, lookups, share, broken FROM sluice.stopped_batch
WHERE stream_id = %(stream)s AND batch_id = %(batch)s AND decision IS NOT NULL

-- name: undecide
-- Forgets the decision on a stopped batch, which stays stopped.
UPDATE sluice.stopped_batch SET decision = NULL, decided_by = NULL, why = NULL, decided_at = NULL
WHERE stream_id = %(stream)s AND batch_id = %(batch)s

-- name: decide
-- Records a decision on a stopped batch that was not delivered; returns the one of before. Changes no row when there is none,
-- nor where the batch has stopped again, or somebody has decided, since the moment at which it was seen.
WITH before AS (
    SELECT decision, decided_by FROM sluice.stopped_batch
    WHERE (pipeline, stream_id, batch_id) = (%(pipeline)s, %(stream)s, %(batch)s)
)
UPDATE sluice.stopped_batch s SET decision = %(decision)s, decided_by = %(who)s, why = %(why)s, decided_at = now()
WHERE s.pipeline = %(pipeline)s AND s.stream_id = %(stream)s AND s.batch_id = %(batch)s
  AND (%(seen)s::timestamptz IS NULL OR (s.stopped_at = %(seen)s AND s.decision IS NULL))
  AND NOT EXISTS (SELECT FROM sluice.delivery d WHERE (d.stream_id, d.batch_id) = (s.stream_id, s.batch_id))
RETURNING stops, (SELECT decision FROM before), (SELECT decided_by FROM before)

-- name: forget_stops
-- Removes the stopped batches of streams that are no longer the pipeline's current one: no run can have them again.
DELETE FROM sluice.stopped_batch s USING sluice.pipeline p
WHERE s.pipeline = %(pipeline)s AND p.name = s.pipeline AND s.stream_id IS DISTINCT FROM p.current_stream

-- name: forget_stops_from
-- Removes the stopped batches of a stream from one on: they are planned anew, of other records.
DELETE FROM sluice.stopped_batch WHERE stream_id = %(stream)s AND batch_id >= %(batch)s

-- name: open_stops
-- Stopped batches of a pipeline that were not delivered since.
SELECT s.stream_id::text, s.batch_id, s.stops, s.decision, s.decided_by, s.stopped_at, s.lapsed, s.malformed, s.broken, s.behind
FROM sluice.stopped_batch s
WHERE s.pipeline = %(pipeline)s
  AND NOT EXISTS (SELECT FROM sluice.delivery d WHERE (d.stream_id, d.batch_id) = (s.stream_id, s.batch_id))
ORDER BY s.stopped_at
