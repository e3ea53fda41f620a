-- name: keep_table
-- Others may read and write the table, and not change it.
LOCK TABLE {target} IN ACCESS SHARE MODE

-- name: no_time_limits
-- A recount takes as long as the table is large.
SET LOCAL statement_timeout = 0; SET LOCAL transaction_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0

-- name: attempts
-- What is known of these attempts, of any pipeline; `since`: committed after commit `seen`.
SELECT a.delivery_id, a.stream_id::text, a.batch_id, left(a.lease_token::text, 8) AS run,
       CASE WHEN d.commit_seq > %(seen)s THEN 'since'
            WHEN a.adopted AND a.outcome IS DISTINCT FROM 'delivered' THEN 'lost'
            ELSE coalesce(a.outcome, 'open') END AS state
FROM sluice.attempt a LEFT JOIN sluice.delivery d USING (delivery_id)
WHERE a.delivery_id = ANY(%(deliveries)s)
