-- name: retained_pointers
-- Every metadata location that was in force at a moment within the horizon. A delivery's time is when its
-- transaction wrote that down, so one more is taken before the first of them.
WITH horizon AS (
    SELECT coalesce(max(commit_seq) - 1, 0) AS first FROM sluice.delivery
    WHERE pipeline = %(pipeline)s AND committed_at < now() - %(horizon)s
)
SELECT d.metadata_location, d.quarantine_metadata_location FROM sluice.delivery d, horizon
WHERE d.pipeline = %(pipeline)s AND d.commit_seq >= horizon.first

-- name: manifests
-- The delivery manifests of a pipeline's ledger rows.
SELECT manifest FROM sluice.delivery WHERE pipeline = %(pipeline)s
