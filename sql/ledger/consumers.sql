-- name: make
-- Makes the consumer at the beginning where it is missing; nothing while the pipeline has no row.
INSERT INTO sluice.consumer (pipeline, name) SELECT p.name, %(consumer)s FROM sluice.pipeline p WHERE p.name = %(pipeline)s
ON CONFLICT DO NOTHING

-- name: place
-- A consumer's place, the delivery that its commit is by now, and the newest; no row where there is no such consumer.
SELECT c.commit_seq, c.delivery_id, d.delivery_id AS found, coalesce(n.commit_seq, 0) AS newest, n.delivery_id AS newest_delivery
FROM sluice.consumer c
LEFT JOIN sluice.delivery d ON d.pipeline = c.pipeline AND d.commit_seq = c.commit_seq
LEFT JOIN LATERAL (
    SELECT e.commit_seq, e.delivery_id FROM sluice.delivery e WHERE e.pipeline = c.pipeline
    ORDER BY e.commit_seq DESC LIMIT 1) n ON true
WHERE (c.pipeline, c.name) = (%(pipeline)s, %(consumer)s)

-- name: delivery_at
-- The delivery of one of the pipeline's commits; no row where the ledger has no such commit.
SELECT d.delivery_id FROM sluice.delivery d WHERE d.pipeline = %(pipeline)s AND d.commit_seq = %(commit)s

-- name: changes
-- What became of the pipeline's table after one of its commits, in the order of commits, what went before what came.
SELECT delivery_id, change, changed_by, commit_seq, rows FROM sluice.changes(%(pipeline)s, %(after)s)
ORDER BY commit_seq, change <> 'delete', delivery_id

-- name: lags
-- How far each consumer is behind, of one pipeline or of all.
SELECT l.consumer, l.pipeline, l.commit_seq, l.delivery_id, l.newest_seq, l.newest_delivery, l.deliveries, l.rows, l.behind_since,
       extract(epoch FROM now() - l.behind_since)::float8 AS seconds, extract(epoch FROM l.lag_limit)::float8 AS limit_seconds,
       l.late, l.moved_at, l.created_at
FROM sluice.consumer_lag l WHERE %(pipeline)s::text IS NULL OR l.pipeline = %(pipeline)s ORDER BY l.pipeline, l.consumer

-- name: late
-- The consumers of these pipelines, but for retired ones, that are further behind than they may be, the furthest first.
SELECT l.pipeline, l.consumer, date_trunc('second', now() - l.behind_since) AS behind, l.lag_limit AS "limit"
FROM sluice.consumer_lag l JOIN sluice.pipeline p ON p.name = l.pipeline
WHERE l.late AND p.retired_at IS NULL AND l.pipeline = ANY(%(pipelines)s) ORDER BY behind DESC, l.pipeline, l.consumer

-- name: advance
-- Moves a place in the consumer's own transaction.
SELECT sluice.advance(%(pipeline)s, %(consumer)s, %(place)s, %(to)s)
