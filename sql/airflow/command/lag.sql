-- name: newly_late
-- The consumers that have passed their limit, or its double, fourfold and so on, since the last try that ended well has ended.
SELECT l.pipeline, l.consumer, date_trunc('second', now() - l.behind_since) AS behind, l.lag_limit AS "limit"
FROM sluice.consumer_lag l CROSS JOIN LATERAL (
    SELECT l.lag_limit * power(2, floor(log(2, (extract(epoch FROM now() - l.behind_since) / extract(epoch FROM l.lag_limit))::numeric)))
        AS passed) mark
WHERE l.late AND l.pipeline = %(pipeline)s AND NOT EXISTS (
    SELECT FROM sluice.airflow_try t
    WHERE t.pipeline = l.pipeline AND t.outcome = 'done' AND t.ended_at >= l.behind_since + mark.passed)
ORDER BY behind DESC, l.consumer
