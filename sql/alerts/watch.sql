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
