-- name: begin
-- Records a run beside the stream, and the stream of its one batch; the caller holds the pipeline's lock.
WITH stream AS (
    INSERT INTO sluice.stream (stream_id, pipeline, first_batch) VALUES (%(run)s, %(pipeline)s, 0)
)
INSERT INTO sluice.run (run_id, pipeline, stream_id, holder, process, kind, who, why, plan)
VALUES (%(run)s, %(pipeline)s, %(run)s, %(holder)s, %(process)s, %(kind)s, %(who)s, %(why)s, %(plan)s)

-- name: release_of_the_hour
-- When the release began that so many others have followed within the last hour; the caller holds the pipeline's lock.
SELECT started_at FROM sluice.run
WHERE pipeline = %(pipeline)s AND kind = 'release' AND started_at > now() - interval '1 hour'
ORDER BY started_at DESC OFFSET %(others)s LIMIT 1

-- name: is_open
-- One row while the attempt may be committed: it was not fenced, and PostgreSQL did not lose it.
SELECT FROM sluice.attempt WHERE delivery_id = %(delivery)s AND lease_token = %(run)s AND closed_at IS NULL

-- name: supersede
-- Takes live deliveries out of force; the row count is how many were.
UPDATE sluice.delivery SET live = false, superseded_by = %(delivery)s
WHERE pipeline = %(pipeline)s AND delivery_id = ANY(%(deliveries)s) AND live

-- name: newest_before
-- The pipeline's newest delivery but this one.
SELECT delivery_id FROM sluice.delivery WHERE pipeline = %(pipeline)s AND delivery_id <> %(delivery)s
ORDER BY commit_seq DESC LIMIT 1

-- name: released_since
-- Live releases from what is replaced that the plan did not know of.
SELECT delivery_id FROM sluice.delivery
WHERE live AND released_from = ANY(%(deliveries)s) AND NOT delivery_id = ANY(%(kept)s)

-- name: supersede_inputs
-- Their inputs may be in another live delivery from here on.
UPDATE sluice.delivery_input SET live = false WHERE delivery_id = ANY(%(deliveries)s) AND live

-- name: supersede_ranges
-- What they read of Kafka may be in another live delivery from here on.
UPDATE sluice.delivery_range SET live = false WHERE delivery_id = ANY(%(deliveries)s) AND live

-- name: supersede_held
-- What they held is no longer waiting for anybody.
UPDATE sluice.quarantine SET status = 'superseded' WHERE delivery_id = ANY(%(deliveries)s)

-- name: remove_rows
-- Removes what deliveries brought; the row count is the number of rows.
DELETE FROM {target} WHERE _delivery_id = ANY(%(deliveries)s)

-- name: release
-- Lets rows out of quarantine, each only while it is held; the row count is how many were.
UPDATE sluice.quarantine SET status = 'released', released_by = %(delivery)s, decided_by = %(who)s, why = %(why)s,
    decided_at = now()
WHERE pipeline = %(pipeline)s AND delivery_id = %(origin)s AND quarantine_id = ANY(%(rows)s) AND status = 'held'

-- name: released_rows
-- The rows that these releases had let out of those deliveries, as they were held.
SELECT quarantine_id, row, raw, source_path FROM sluice.quarantine
WHERE released_by = ANY(%(kept)s) AND delivery_id = ANY(%(deliveries)s) ORDER BY quarantine_id

-- name: held_by
-- What a delivery holds.
SELECT quarantine_id, row, raw, source_path FROM sluice.quarantine WHERE delivery_id = %(delivery)s ORDER BY quarantine_id

-- name: keep_releases
-- Rows that are held once more stay released as they were.
UPDATE sluice.quarantine q SET status = 'released', released_by = old.released_by, decided_by = old.decided_by,
    why = old.why, decided_at = old.decided_at
FROM unnest(%(held)s::bigint[], %(released)s::bigint[]) AS pair (held, released)
JOIN sluice.quarantine old ON old.quarantine_id = pair.released
WHERE q.quarantine_id = pair.held

-- name: follow
-- Releases that stay belong to the new delivery from here on.
UPDATE sluice.delivery SET released_from = %(delivery)s WHERE delivery_id = ANY(%(kept)s) AND live

-- name: live
-- Which of these deliveries are in force.
SELECT FROM sluice.delivery WHERE delivery_id = ANY(%(deliveries)s) AND live

-- name: held
-- Which of these rows are held.
SELECT FROM sluice.quarantine WHERE quarantine_id = ANY(%(rows)s) AND status = 'held'
