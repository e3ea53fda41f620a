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

-- name: claim_records
-- What the stream's runs have delivered since the last look, a row for each run that Airflow did not start; notes that it was looked at.
WITH place AS (
    SELECT w.commit_seq FROM sluice.alert_watch w WHERE w.pipeline = %(pipeline)s FOR UPDATE
), came AS (
    SELECT d.* FROM sluice.delivery d JOIN sluice.pipeline p ON p.name = d.pipeline
    WHERE d.pipeline = %(pipeline)s AND d.kind = 'stream' AND p.retired_at IS NULL
      AND d.commit_seq > coalesce((SELECT commit_seq FROM place), 0)
), moved AS (
    INSERT INTO sluice.alert_watch AS w SELECT %(pipeline)s, max(c.commit_seq) FROM came c HAVING count(*) > 0
    ON CONFLICT (pipeline) DO UPDATE SET commit_seq = greatest(w.commit_seq, EXCLUDED.commit_seq)
)
SELECT array_agg(c.delivery_id), sum(c.rows_in)::bigint, sum(coalesce(c.records, c.rows_in))::bigint, sum(c.quarantined)::bigint,
       sum(coalesce(c.dropped, 0))::bigint, coalesce(jsonb_agg(c.unknown) FILTER (WHERE c.unknown IS NOT NULL), '[]'),
       coalesce(jsonb_agg(c.missing) FILTER (WHERE c.missing IS NOT NULL), '[]')
FROM came c WHERE NOT EXISTS (SELECT FROM sluice.airflow_try t WHERE t.run_id = c.run_id)
GROUP BY c.run_id ORDER BY max(c.commit_seq)

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
