-- name: by_deliveries
-- Deliveries by their numbers, released ones left out: they go with what held them.
SELECT delivery_id FROM sluice.delivery
WHERE pipeline = %(pipeline)s AND kind <> 'release' AND EXISTS (
    SELECT FROM unnest(%(firsts)s::bigint[], %(lasts)s::bigint[]) span (first, last) WHERE delivery_id BETWEEN first AND last)

-- name: by_batches
-- Deliveries by batch ids of one stream.
SELECT delivery_id FROM sluice.delivery
WHERE pipeline = %(pipeline)s AND stream_id = %(stream)s AND batch_id BETWEEN %(first)s AND %(last)s AND kind <> 'release'

-- name: runs
-- Those of these runs that the pipeline has had, whatever they delivered.
SELECT FROM sluice.run WHERE pipeline = %(pipeline)s AND run_id = ANY(%(runs)s::uuid[])

-- name: by_runs
-- Deliveries of these runs.
SELECT delivery_id FROM sluice.delivery
WHERE pipeline = %(pipeline)s AND run_id = ANY(%(runs)s::uuid[]) AND kind <> 'release'

-- name: inputs_in_force
-- The inputs of the live deliveries of the stream and of replays.
SELECT i.delivery_id, i.path FROM sluice.delivery_input i JOIN sluice.delivery d USING (delivery_id)
WHERE d.pipeline = %(pipeline)s AND d.live AND d.kind <> 'release'

-- name: in_force
-- What of these deliveries is in force today: they themselves, or what took their place; in the order of commits. Of what
-- was withdrawn nothing is.
WITH RECURSIVE chain AS (
    SELECT delivery_id, superseded_by FROM sluice.delivery WHERE delivery_id = ANY(%(deliveries)s)
    UNION
    SELECT d.delivery_id, d.superseded_by FROM sluice.delivery d JOIN chain c ON d.delivery_id = c.superseded_by
)
SELECT d.delivery_id, d.stream_id::text, d.batch_id, d.kind, d.rows_in, d.delivered, d.quarantined,
       d.suite_digest, d.committed_at
FROM chain JOIN sluice.delivery d USING (delivery_id) WHERE d.live AND d.kind <> 'withdrawal' ORDER BY d.commit_seq

-- name: releases
-- Live releases of rows that these deliveries had held, and of rows that such releases had held once more.
WITH RECURSIVE release AS (
    SELECT delivery_id FROM sluice.delivery WHERE live AND released_from = ANY(%(deliveries)s)
    UNION
    SELECT d.delivery_id FROM sluice.delivery d JOIN release r ON d.released_from = r.delivery_id WHERE d.live
)
SELECT d.delivery_id, d.released_from, d.delivered, d.quarantined FROM release JOIN sluice.delivery d USING (delivery_id)
ORDER BY d.delivery_id

-- name: inputs
-- The recorded inputs of these deliveries.
SELECT path, uri, size, mtime_ms, etag, source FROM sluice.delivery_input
WHERE delivery_id = ANY(%(deliveries)s) ORDER BY path

-- name: made_with
-- The suites, lookups and models that these deliveries were made with, each combination once.
SELECT DISTINCT suite_digest, lookups FROM sluice.delivery WHERE delivery_id = ANY(%(deliveries)s)

-- name: unread
-- The files of which these deliveries had held what could not be read, each with the reason.
SELECT source_path, substr(raw, length(%(prefix)s) + 1) FROM sluice.quarantine
WHERE delivery_id = ANY(%(deliveries)s) AND starts_with(raw, %(prefix)s) AND source_path IS NOT NULL AND row IS NULL

-- name: files
-- The objects of these deliveries.
SELECT delivery_id, kind, path FROM sluice.delivery_file WHERE delivery_id = ANY(%(deliveries)s)
