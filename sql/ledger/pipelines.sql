-- name: lock_registration
-- Keeps other first runs, and renames, out until the transaction ends: of two at once neither would see whose name and whose
-- table the other takes.
SELECT pg_advisory_xact_lock(hashtextextended('sluice.pipeline', 0))

-- name: owner
-- The other pipeline that has a table; no row where none has.
SELECT p.name FROM sluice.pipeline p
WHERE (p.table_schema, p.table_name) = (%(table_schema)s, %(table_name)s) AND p.name <> %(pipeline)s

-- name: register_pipeline
-- Makes sure that the pipeline has its row; returns nothing.
INSERT INTO sluice.pipeline (name, table_schema, table_name, anew, consumer_lag_limit)
VALUES (%(pipeline)s, %(table_schema)s, %(table_name)s, %(anew)s, %(consumer_lag_limit)s)
ON CONFLICT (name) DO UPDATE
SET table_schema = excluded.table_schema, table_name = excluded.table_name, anew = excluded.anew,
    consumer_lag_limit = excluded.consumer_lag_limit
WHERE (pipeline.table_schema, pipeline.table_name) = (excluded.table_schema, excluded.table_name)
   OR NOT EXISTS (SELECT FROM sluice.delivery d WHERE d.pipeline = excluded.name)

-- name: all_names
-- The names of all pipelines that ever ran.
SELECT p.name FROM sluice.pipeline p ORDER BY p.name

-- name: take_up
-- Takes a retired pipeline up again; the caller holds the row's lock.
UPDATE sluice.pipeline SET retired_at = NULL, retired_by = NULL, retired_why = NULL
WHERE name = %(pipeline)s AND retired_at IS NOT NULL

-- name: delivers_by_replace
-- Keeps that a batch took the place of all before it, and from which commit on, the one under way; the caller holds the row's
-- lock.
UPDATE sluice.pipeline SET replaces = true, replaces_from = commit_seq WHERE name = %(pipeline)s AND replaces IS DISTINCT FROM true

-- name: skip_commits
-- Makes sure that commits of the pipeline up to this number are never given out again.
UPDATE sluice.pipeline SET commit_seq = %(number)s WHERE name = %(pipeline)s AND commit_seq < %(number)s

-- name: pipeline_row
-- The pipeline's row as it is, without a lock.
SELECT p.name, p.table_schema, p.table_name, p.current_stream::text, p.replaces, p.anew, p.consumer_lag_limit
FROM sluice.pipeline p WHERE p.name = %(pipeline)s

-- name: lock_pipeline
-- Locks the pipeline's row until the transaction ends: every commit of the pipeline has it before it changes the ledger. Keys can
-- still be referenced, and heartbeats and endings go to the run's row, so a long merge holds up commits alone.
SELECT p.current_stream::text, p.lease_token::text FROM sluice.pipeline p WHERE p.name = %(pipeline)s
FOR NO KEY UPDATE
