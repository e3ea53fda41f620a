-- name: totals
-- What a pipeline has delivered so far.
WITH last AS (SELECT l.unknown, l.missing FROM sluice.delivery l WHERE l.pipeline = %(pipeline)s AND l.live
              ORDER BY l.commit_seq DESC LIMIT 1)
SELECT count(*) AS deliveries, coalesce(sum(delivered), 0)::bigint AS delivered,
       coalesce(sum(quarantined), 0)::bigint AS quarantined, max(committed_at) AS last,
       coalesce(sum(dropped), 0)::bigint AS dropped, max(committed_at) FILTER (WHERE dropped > 0) AS last_dropped,
       (SELECT l.unknown FROM last l) AS unknown, (SELECT l.missing FROM last l) AS missing
FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live

-- name: standing
-- Where a pipeline stands, as pages and dashboards have it; no row before its first run.
SELECT standing, failing_since FROM sluice.quality_pipeline WHERE pipeline = %(pipeline)s
