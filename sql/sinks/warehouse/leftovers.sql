-- name: drop_staging
-- Removes a staging table.
DROP TABLE IF EXISTS sluice_stage.{staging}

-- name: staging_there
-- Which of these staging tables are there. Within one transaction to_regclass() may go on to say that one is not: it does not
-- hear of new tables.
SELECT relname FROM pg_class WHERE relnamespace = 'sluice_stage'::regnamespace AND relkind = 'r' AND relname = ANY(%(tables)s)

-- name: lock_staging
-- Makes sure that nobody writes to a staging table; fails at once when somebody does.
LOCK TABLE sluice_stage.{staging} IN ACCESS EXCLUSIVE MODE NOWAIT

-- name: staging_left
-- The staging tables of a pipeline's attempts that are closed, which can't commit any more. Earlier versions made one whose
-- name ends in _quarantine.
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN sluice.attempt a ON a.delivery_id = substring(c.relname FROM '^d(\d{{1,18}})_')::bigint
WHERE n.nspname = 'sluice_stage' AND c.relkind = 'r' AND a.pipeline = %(pipeline)s AND a.closed_at IS NOT NULL
  AND regexp_replace(c.relname, '_(rows|log|quarantine)$', '')
      = format('d%%s_%%s', a.delivery_id, left(a.lease_token::text, 8))
ORDER BY c.relname
