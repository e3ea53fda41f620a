-- name: newest_delivery
-- The pipeline's newest delivery, and the run that made it.
SELECT delivery_id, run_id::text FROM sluice.delivery WHERE pipeline = %(pipeline)s ORDER BY commit_seq DESC LIMIT 1

-- name: newest_if_delivered
-- The same, if this one is delivered: by that run, or put back by another.
SELECT delivery_id, run_id::text FROM sluice.delivery
WHERE pipeline = %(pipeline)s AND EXISTS (
    SELECT FROM sluice.delivery d JOIN sluice.attempt a USING (delivery_id)
    WHERE d.delivery_id = %(delivery_id)s AND d.pipeline = %(pipeline)s
      AND (d.run_id::text = %(run_id)s OR a.adopted))
ORDER BY commit_seq DESC LIMIT 1
