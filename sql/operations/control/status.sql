-- name: totals
-- What a pipeline has delivered so far, and which fields the last delivery that read records counted as unknown or missing.
WITH last AS (SELECT l.unknown, l.missing FROM sluice.delivery l WHERE l.pipeline = %(pipeline)s AND l.live
              AND l.kind IN ('stream', 'replay') ORDER BY l.commit_seq DESC LIMIT 1)
SELECT count(*) AS deliveries, sum(records)::bigint AS records,
       coalesce(sum(rows_in) FILTER (WHERE records IS NOT NULL), 0)::bigint AS rows_in,
       coalesce(sum(malformed) FILTER (WHERE records IS NOT NULL), 0)::bigint AS malformed, coalesce(sum(delivered), 0)::bigint AS delivered,
       coalesce(sum(quarantined), 0)::bigint AS quarantined,
       (SELECT count(*) FROM sluice.quarantine q WHERE q.pipeline = %(pipeline)s AND q.status = 'held') AS held, max(committed_at) AS last,
       coalesce(sum(dropped), 0)::bigint AS dropped, max(committed_at) FILTER (WHERE dropped > 0) AS last_dropped,
       (SELECT l.unknown FROM last l) AS unknown, (SELECT l.missing FROM last l) AS missing
FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live

-- name: standing
-- Where a pipeline stands, as pages and dashboards have it; no row before its first run.
SELECT standing, failing_since FROM sluice.quality_pipeline WHERE pipeline = %(pipeline)s
