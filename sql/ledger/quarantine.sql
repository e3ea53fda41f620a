-- name: by_reason
-- The rows that were chosen, by reason; a row with two reasons counts under both. Null chooses everything.
SELECT reason, count(*) AS rows, count(DISTINCT q.delivery_id) AS deliveries
FROM sluice.quarantine q, unnest(q.reasons) AS reason
WHERE q.pipeline = %(pipeline)s
  AND (%(status)s::text IS NULL OR q.status = %(status)s)
  AND (%(ids)s::bigint[] IS NULL OR q.quarantine_id = ANY(%(ids)s::bigint[]))
  AND (%(delivery)s::bigint IS NULL OR q.delivery_id = %(delivery)s)
  AND (%(reason)s::text IS NULL OR %(reason)s = ANY(q.reasons))
GROUP BY reason ORDER BY 2 DESC, 1

-- name: chosen
-- The rows that were chosen, in the order in which they were staged; null chooses everything.
SELECT q.quarantine_id, q.delivery_id, q.stream_id::text, q.batch_id, q.reasons, q.status, q.source_path, q.raw, q.row, q.detail,
       q.released_by, q.decided_by, q.why, q.decided_at, d.committed_at AS held_at, d.superseded_by
FROM sluice.quarantine q JOIN sluice.delivery d USING (delivery_id)
WHERE q.pipeline = %(pipeline)s
  AND (%(status)s::text IS NULL OR q.status = %(status)s)
  AND (%(ids)s::bigint[] IS NULL OR q.quarantine_id = ANY(%(ids)s::bigint[]))
  AND (%(delivery)s::bigint IS NULL OR q.delivery_id = %(delivery)s)
  AND (%(reason)s::text IS NULL OR %(reason)s = ANY(q.reasons))
ORDER BY q.quarantine_id LIMIT %(limit)s

-- name: discard
-- Gives rows up, each only while it is held; the row count is how many were.
UPDATE sluice.quarantine SET status = 'discarded', decided_by = %(who)s, why = %(why)s, decided_at = now()
WHERE pipeline = %(pipeline)s AND quarantine_id = ANY(%(ids)s) AND status = 'held'
