-- name: retired
-- Whether a pipeline is retired, and since when; no row where it has never run.
SELECT p.retired_at FROM sluice.pipeline p WHERE p.name = %(pipeline)s

-- name: retire
-- Retires a pipeline; the caller holds the row's lock.
UPDATE sluice.pipeline SET retired_at = now(), retired_by = %(who)s, retired_why = %(why)s WHERE name = %(pipeline)s

-- name: retired_names
-- The names of the retired pipelines.
SELECT name FROM sluice.pipeline WHERE retired_at IS NOT NULL ORDER BY name
