-- name: commits
-- The pipeline's newest commit (0: none yet), and that of one of its deliveries (null: it has no such delivery).
SELECT coalesce((SELECT max(n.commit_seq) FROM sluice.delivery n WHERE n.pipeline = p.name), 0), d.commit_seq
FROM sluice.pipeline p LEFT JOIN sluice.delivery d ON d.pipeline = p.name AND d.delivery_id = %(delivery)s WHERE p.name = %(pipeline)s

-- name: put
-- Puts the consumer's place behind a commit, or makes the consumer there.
INSERT INTO sluice.consumer AS c (pipeline, name, commit_seq, delivery_id, moved_at)
SELECT p.name, %(consumer)s, %(commit)s, d.delivery_id, now()
FROM sluice.pipeline p LEFT JOIN sluice.delivery d ON d.pipeline = p.name AND d.commit_seq = %(commit)s
WHERE p.name = %(pipeline)s
ON CONFLICT (pipeline, name) DO UPDATE
SET commit_seq = excluded.commit_seq, delivery_id = excluded.delivery_id, moved_at = excluded.moved_at

-- name: forget
-- Forgets the consumer.
DELETE FROM sluice.consumer WHERE (pipeline, name) = (%(pipeline)s, %(consumer)s)
