-- name: failed_runs
-- The pipelines that are stopped or failing, by the newest run of each that has failed or was killed. Of one that Airflow started its
-- tasks tell; and nothing is told again that an alert has been told of since.
SELECT q.pipeline, newest.kind, newest.outcome, newest.message
FROM sluice.quality_pipeline q JOIN sluice.pipeline p ON p.name = q.pipeline
CROSS JOIN LATERAL (
    SELECT r.run_id, r.outcome, r.message, least(r.ended_at, r.seen_at + interval '30 seconds') AS moment,
           CASE q.standing WHEN 'stopped' THEN 'question' ELSE 'failed' END AS kind
    FROM sluice.run r
    WHERE r.pipeline = p.name AND r.kind = 'stream'
      AND (r.ended_at IS NOT NULL OR (r.run_id = p.lease_token AND r.seen_at <= now() - interval '30 seconds'))
    ORDER BY r.started_at DESC LIMIT 1) newest
WHERE q.standing IN ('stopped', 'failing') AND p.retired_at IS NULL
  AND NOT EXISTS (SELECT FROM sluice.airflow_try t WHERE t.run_id = newest.run_id)
  AND NOT EXISTS (SELECT FROM sluice.alert a WHERE (a.pipeline, a.kind, a.about) = (p.name, newest.kind, '')
                  AND a.last_at >= newest.moment)
ORDER BY q.pipeline

-- name: failed_audits
-- The pipelines whose last audit has found differences that no alert has been told of since, and how many.
SELECT m.pipeline, m.differences FROM sluice.maintenance m JOIN sluice.pipeline p ON p.name = m.pipeline
WHERE m.command = 'audit' AND m.differences > 0 AND p.retired_at IS NULL
  AND NOT EXISTS (SELECT FROM sluice.alert a WHERE (a.pipeline, a.kind, a.about) = (m.pipeline, 'failed', m.command)
                  AND a.last_at >= m.ended_at)
ORDER BY m.pipeline

-- name: newest_run
-- What the newest run of the stream that delivered did, once it has ended and unless Airflow started it, a row for each delivery;
-- and which kinds of alerts have told of the pipeline since. A run of more than a week ago is no news, to a look that comes so late.
SELECT d.delivery_id, d.rows_in, coalesce(d.records, d.rows_in), d.quarantined, coalesce(d.dropped, 0),
       coalesce(d.unknown, '{{}}'), coalesce(d.missing, '{{}}'),
       ARRAY(SELECT a.kind FROM sluice.alert a WHERE a.pipeline = d.pipeline
             AND a.last_at >= (SELECT max(n.committed_at) FROM sluice.delivery n WHERE n.run_id = d.run_id))
FROM sluice.delivery d
WHERE d.kind = 'stream' AND d.committed_at > now() - interval '7 days' AND d.run_id = (
    SELECT r.run_id FROM sluice.run r JOIN sluice.pipeline p ON p.name = r.pipeline
    WHERE p.retired_at IS NULL AND (r.ended_at IS NOT NULL OR r.seen_at <= now() - interval '30 seconds')
      AND NOT EXISTS (SELECT FROM sluice.airflow_try t WHERE t.run_id = r.run_id)
      AND r.run_id = (SELECT n.run_id FROM sluice.delivery n WHERE n.pipeline = %(pipeline)s AND n.kind = 'stream'
                      ORDER BY n.commit_seq DESC LIMIT 1))

-- name: newest
-- When the stream's last batch was committed, of a pipeline that is not retired, and the database's own time.
SELECT (SELECT d.committed_at FROM sluice.delivery d JOIN sluice.pipeline p ON p.name = d.pipeline
        WHERE d.pipeline = %(pipeline)s AND d.kind = 'stream' AND p.retired_at IS NULL ORDER BY d.commit_seq DESC LIMIT 1), now()

-- name: first_day
-- The day on which the stream's first batch was committed, likewise, and today, both in a zone.
SELECT (SELECT (d.committed_at AT TIME ZONE %(zone)s)::date FROM sluice.delivery d JOIN sluice.pipeline p ON p.name = d.pipeline
        WHERE d.pipeline = %(pipeline)s AND d.kind = 'stream' AND p.retired_at IS NULL ORDER BY d.commit_seq LIMIT 1),
       (now() AT TIME ZONE %(zone)s)::date

-- name: days
-- How many rows the stream's batches brought on each day of a zone from a moment on, what was replaced since included.
SELECT (d.committed_at AT TIME ZONE %(zone)s)::date, sum(d.rows_in - d.malformed)::bigint FROM sluice.delivery d
WHERE d.pipeline = %(pipeline)s AND d.kind = 'stream' AND d.committed_at >= %(since)s GROUP BY 1
