-- name: names
-- The pipelines that somebody may still ask about.
SELECT p.name FROM sluice.pipeline p WHERE p.retired_at IS NULL ORDER BY p.name

-- name: deliveries
-- What each pipeline's commits have brought so far, by their kind.
SELECT d.pipeline, d.kind, count(*) AS deliveries, sum(d.delivered)::bigint AS delivered, sum(d.quarantined)::bigint AS quarantined,
       sum(d.malformed)::bigint AS malformed, sum(coalesce(d.dropped, 0))::bigint AS dropped
FROM sluice.delivery d WHERE d.pipeline = ANY(%(names)s) GROUP BY d.pipeline, d.kind ORDER BY d.pipeline, d.kind

-- name: pipelines
-- How each pipeline stands: its last batch, how long the parts of that took, what it left to read, and what is held now.
SELECT p.name AS pipeline, q.standing, last.committed, last.share, batch.phases_ms, batch.seconds, batch.behind, batch.watermark,
       extract(epoch FROM p.consumer_lag_limit)::float8 AS lag_limit,
       (SELECT count(*) FROM sluice.quarantine h WHERE h.pipeline = p.name AND h.status = 'held') AS held,
       (SELECT count(*) FROM sluice.run r WHERE r.pipeline = p.name AND r.ended_at IS NULL) AS running,
       (SELECT count(*) FROM sluice.lineage_event e JOIN sluice.delivery d USING (delivery_id)
        WHERE d.pipeline = p.name AND e.sent_at IS NULL) AS unsent
FROM sluice.pipeline p JOIN sluice.quality_pipeline q ON q.pipeline = p.name
LEFT JOIN LATERAL (
    SELECT extract(epoch FROM b.committed_at)::float8 AS committed, b.quarantined_share AS share FROM sluice.quality_batch b
    WHERE b.pipeline = p.name AND b.live AND b.kind IN ('stream', 'replay') ORDER BY b.commit_seq DESC LIMIT 1) last ON true
LEFT JOIN LATERAL (
    SELECT b.phases_ms, (b.durations_ms ->> 'triggerExecution')::float8 / 1000 AS seconds, b.behind,
           extract(epoch FROM b.watermark)::float8 AS watermark
    FROM sluice.batch_progress b WHERE b.stream_id = p.current_stream AND b.phases_ms <> '{{}}'
    ORDER BY b.batch_id DESC LIMIT 1) batch ON true
WHERE p.name = ANY(%(names)s) ORDER BY p.name

-- name: runs
-- How the runs of each pipeline have ended.
SELECT r.pipeline, r.kind, r.outcome, count(*) AS runs FROM sluice.run r
WHERE r.pipeline = ANY(%(names)s) AND r.ended_at IS NOT NULL GROUP BY r.pipeline, r.kind, r.outcome
ORDER BY r.pipeline, r.kind, r.outcome

-- name: attempts
-- What became of the attempts of each pipeline; those that were not delivered may have left objects on S3.
SELECT a.pipeline, coalesce(a.outcome, 'open') AS outcome, count(*) AS attempts FROM sluice.attempt a
WHERE a.pipeline = ANY(%(names)s) GROUP BY a.pipeline, a.outcome ORDER BY a.pipeline, 2

-- name: orphans
-- What the last sweep or audit of each pipeline saw on S3 that nothing refers to.
SELECT o.pipeline, o.objects, o.bytes, extract(epoch FROM o.seen_at)::float8 AS seen FROM sluice.orphans o
WHERE o.pipeline = ANY(%(names)s) ORDER BY o.pipeline

-- name: consumers
-- How far each consumer is behind.
SELECT l.pipeline, l.consumer, l.deliveries, l.rows, coalesce(extract(epoch FROM now() - l.behind_since), 0)::float8 AS seconds
FROM sluice.consumer_lag l WHERE l.pipeline = ANY(%(names)s) ORDER BY l.pipeline, l.consumer
