-- name: make
-- Makes the consumer at the beginning where it is missing; nothing while the pipeline has no row.
INSERT INTO sluice.consumer (pipeline, name) SELECT p.name, %(consumer)s FROM sluice.pipeline p WHERE p.name = %(pipeline)s
ON CONFLICT DO NOTHING

-- name: place
-- A consumer's place, and the delivery that its commit is by now; no row where there is no such consumer.
SELECT c.commit_seq, c.delivery_id, d.delivery_id AS found, p.commit_seq AS newest
FROM sluice.consumer c JOIN sluice.pipeline p ON p.name = c.pipeline
LEFT JOIN sluice.delivery d ON d.pipeline = c.pipeline AND d.commit_seq = c.commit_seq
WHERE (c.pipeline, c.name) = (%(pipeline)s, %(consumer)s)

-- name: changes
-- What became of the pipeline's table after one of its commits, in the order of commits, what went before what came.
SELECT delivery_id, change, changed_by, commit_seq, rows FROM sluice.changes(%(pipeline)s, %(after)s)
ORDER BY commit_seq, change <> 'delete', delivery_id

-- name: advance
-- Moves a place in the consumer's own transaction.
SELECT sluice.advance(%(pipeline)s, %(consumer)s, %(place)s, %(to)s)
