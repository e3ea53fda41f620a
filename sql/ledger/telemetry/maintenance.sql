-- name: note
-- Keeps how an audit or a sweep came out, in the place of the one before; nothing while the pipeline has no row.
INSERT INTO sluice.maintenance (pipeline, command, differences)
SELECT p.name, %(command)s, %(differences)s FROM sluice.pipeline p WHERE p.name = %(pipeline)s
ON CONFLICT (pipeline, command) DO UPDATE SET differences = excluded.differences, ended_at = excluded.ended_at
