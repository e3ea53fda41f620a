-- name: newest
-- When the stream's last batch was committed, if there is one of a pipeline that is not retired, and the database's own time.
SELECT max(d.committed_at), now() FROM sluice.delivery d JOIN sluice.pipeline p ON p.name = d.pipeline
WHERE d.pipeline = %(pipeline)s AND d.kind = 'stream' AND p.retired_at IS NULL

-- name: first_day
-- The day on which the stream's first batch was committed, likewise, and today, both in a zone.
SELECT (min(d.committed_at) AT TIME ZONE %(zone)s)::date, (now() AT TIME ZONE %(zone)s)::date
FROM sluice.delivery d JOIN sluice.pipeline p ON p.name = d.pipeline
WHERE d.pipeline = %(pipeline)s AND d.kind = 'stream' AND p.retired_at IS NULL

-- name: days
-- How many rows the stream's batches brought on each day of a zone from a moment on, what was replaced since included.
SELECT (d.committed_at AT TIME ZONE %(zone)s)::date, sum(d.rows_in - d.malformed)::bigint FROM sluice.delivery d
WHERE d.pipeline = %(pipeline)s AND d.kind = 'stream' AND d.committed_at >= %(since)s GROUP BY 1
