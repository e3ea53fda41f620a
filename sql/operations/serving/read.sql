-- name: replaced
-- The deliveries of a pipeline whose place another took, and which.
SELECT d.delivery_id, d.superseded_by FROM sluice.delivery d WHERE d.pipeline = %(pipeline)s AND NOT d.live

-- name: newest_commit
-- The number of the pipeline's newest commit, 0 before its first, and whether the ledger has this one.
SELECT coalesce(max(d.commit_seq), 0), %(commit)s = 0 OR EXISTS (
    SELECT FROM sluice.delivery e WHERE e.pipeline = %(pipeline)s AND e.commit_seq = %(commit)s)
FROM sluice.delivery d WHERE d.pipeline = %(pipeline)s

-- name: delivered_between
-- The live deliveries of a pipeline after one of its commits, up to another, in their order.
SELECT d.delivery_id FROM sluice.delivery d
WHERE d.pipeline = %(pipeline)s AND d.live AND d.commit_seq > %(after)s AND d.commit_seq <= %(to)s ORDER BY d.commit_seq

-- name: replaced_between
-- The deliveries up to one of the pipeline's commits whose place was taken after it, up to another commit.
SELECT r.delivery_id FROM sluice.replaced r JOIN sluice.delivery d USING (delivery_id)
WHERE r.pipeline = %(pipeline)s AND d.commit_seq <= %(after)s
  AND r.superseded_seq > %(after)s AND r.superseded_seq <= %(to)s ORDER BY d.commit_seq
