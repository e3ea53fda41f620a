-- name: ask_to_stop
-- Asks the run that has the pipeline's lease to stop, and returns it; no row when none has it.
UPDATE sluice.run r
SET stop_asked_at = coalesce(r.stop_asked_at, now()), stop_asked_by = coalesce(r.stop_asked_by, %(who)s)
FROM sluice.pipeline p WHERE p.name = %(pipeline)s AND r.run_id = p.lease_token AND r.ended_at IS NULL
RETURNING r.run_id::text, r.holder

-- name: run_ended
-- How a run ended, which command a stopped recovery is to be given again, whether it was seen lately, and whether it has the lease still.
SELECT r.outcome, CASE r.outcome WHEN 'Stopped' THEN r.remedy END AS again, r.holder, r.process, r.seen_at > now() - %(silence)s::interval AS fresh, p.lease_token IS NOT DISTINCT FROM r.run_id AS holds
FROM sluice.run r JOIN sluice.pipeline p ON p.name = r.pipeline WHERE r.run_id = %(run)s
