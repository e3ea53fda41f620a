-- name: totals
-- What a pipeline has delivered so far.
SELECT count(*) AS deliveries, coalesce(sum(delivered), 0)::bigint AS delivered,
       coalesce(sum(quarantined), 0)::bigint AS quarantined, max(committed_at) AS last,
       coalesce(sum(dropped), 0)::bigint AS dropped, max(committed_at) FILTER (WHERE dropped > 0) AS last_dropped
FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live
