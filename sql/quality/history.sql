-- name: past_batches
-- The last batches of the stream, and the last of today's day of the week, with their columns' figures, newest first.
SELECT d.delivery_id, d.rows_in - d.malformed AS rows, d.committed_at,
       m.column_name, m.rows_seen, m.null_count, m.nan_count, m.minimum, m.maximum, m.mean, m.deviation, m.earliest, m.latest,
       NULL AS distinct_sketch, NULL AS quantile_sketch, m.distinct_estimate
FROM sluice.delivery d LEFT JOIN sluice.column_metric m USING (delivery_id)
WHERE d.delivery_id IN (
    (SELECT delivery_id FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live AND kind = 'stream'
     ORDER BY commit_seq DESC LIMIT %(last)s)
    UNION
    (SELECT delivery_id FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live AND kind = 'stream'
       AND extract(isodow FROM committed_at AT TIME ZONE %(zone)s) = extract(isodow FROM now() AT TIME ZONE %(zone)s)
     ORDER BY commit_seq DESC LIMIT %(of_weekday)s))
ORDER BY d.commit_seq DESC, m.number

-- name: of_batches
-- The metrics of live batches that were delivered in a span of time, in the order of their commits. What was released
-- from quarantine was counted with the batch that it came in.
SELECT d.committed_at, m.column_name, m.number, m.rows_seen, m.null_count, m.nan_count, m.minimum, m.maximum, m.mean,
       m.deviation, m.earliest, m.latest, m.distinct_sketch, m.quantile_sketch
FROM sluice.delivery d JOIN sluice.column_metric m USING (delivery_id)
WHERE d.pipeline = %(pipeline)s AND d.live AND d.kind <> 'release'
  AND (%(since)s::timestamptz IS NULL OR d.committed_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR d.committed_at < %(until)s)
ORDER BY d.commit_seq, m.number
