-- name: note
-- Keeps what was counted, in the place of what was counted before; nothing while the pipeline has no row.
INSERT INTO sluice.orphans (pipeline, objects, bytes, seen_by)
SELECT p.name, %(objects)s, %(bytes)s, %(seen_by)s FROM sluice.pipeline p WHERE p.name = %(pipeline)s
ON CONFLICT (pipeline) DO UPDATE
SET objects = excluded.objects, bytes = excluded.bytes, seen_by = excluded.seen_by, seen_at = excluded.seen_at
