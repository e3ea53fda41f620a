-- name: same_server
-- Whether the last number was given out here.
SELECT k.server = t.server FROM sluice.number_server k, sluice.this_server t

-- name: lock_server
-- Lets one at a time find out which numbers are free here.
SELECT FROM sluice.number_server FOR UPDATE

-- name: keep_server
-- Notes that numbers are given out here.
UPDATE sluice.number_server SET server = t.server FROM sluice.this_server t

-- name: pipeline_tables
-- The table of each pipeline.
SELECT table_schema || '.' || table_name FROM sluice.pipeline

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
