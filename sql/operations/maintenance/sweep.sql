-- name: old_reports
-- How many deliveries older than the retention still have their report.
SELECT count(*) FROM sluice.quality q JOIN sluice.delivery d USING (delivery_id)
WHERE d.pipeline = %(pipeline)s AND d.committed_at < now() - %(retention)s AND q.report IS NOT NULL

-- name: forget_reports
-- Takes these reports out; the verdict and its counts stay.
UPDATE sluice.quality q SET report = NULL FROM sluice.delivery d
WHERE d.delivery_id = q.delivery_id AND d.pipeline = %(pipeline)s AND d.committed_at < now() - %(retention)s
  AND q.report IS NOT NULL

-- name: forget_sketches
-- Takes the sketches of such deliveries out; the figures stay.
UPDATE sluice.column_metric m SET distinct_sketch = NULL, quantile_sketch = NULL FROM sluice.delivery d
WHERE d.delivery_id = m.delivery_id AND d.pipeline = %(pipeline)s AND d.committed_at < now() - %(retention)s
  AND (m.distinct_sketch IS NOT NULL OR m.quantile_sketch IS NOT NULL)

-- name: neighbours
-- Other Iceberg tables whose metadata is below one of these folders: their objects would look like orphans.
SELECT table_namespace || '.' || table_name FROM sluice.iceberg_tables
WHERE catalog_name = %(catalog)s AND (table_namespace, table_name) NOT IN %(tables)s
  AND (starts_with(metadata_location, %(data)s) OR starts_with(metadata_location, %(quarantine)s))
  AND (table_namespace, table_name) NOT IN (SELECT schema_name, name FROM sluice.published)

-- name: attempts
-- What is known of these attempts. `dead`: it ended before the horizon, so no backup that may be restored has
-- it open. An attempt that recover adopted and did not deliver may be all that is left of its rows: never dead.
SELECT a.delivery_id, a.stream_id::text, a.batch_id, left(a.lease_token::text, 8) AS run,
       coalesce(a.outcome, 'open') AS state,
       a.closed_at IS NOT NULL AND NOT lost.so AS closed,
       coalesce(a.closed_at < now() - %(horizon)s, false) AND NOT lost.so AS dead
FROM sluice.attempt a, LATERAL (SELECT a.adopted AND a.outcome IS DISTINCT FROM 'delivered' AS so) lost
WHERE a.pipeline = %(pipeline)s AND a.delivery_id = ANY(%(deliveries)s)

-- name: delivered_paths
-- Which of these objects are files of live deliveries.
SELECT f.path, f.kind, f.delivery_id FROM sluice.delivered_file f
WHERE f.pipeline = %(pipeline)s AND f.path = ANY(%(paths)s)

-- name: of_earlier_streams
-- How many batches are of streams that are no longer their pipeline's, and older than the horizon.
SELECT count(*) FROM sluice.batch_progress b JOIN sluice.stream s USING (stream_id) JOIN sluice.pipeline p ON p.name = s.pipeline
WHERE p.name = %(pipeline)s AND s.stream_id IS DISTINCT FROM p.current_stream AND b.triggered_at < now() - %(horizon)s

-- name: forget_earlier_streams
-- Takes these out.
DELETE FROM sluice.batch_progress b USING sluice.stream s, sluice.pipeline p
WHERE p.name = %(pipeline)s AND s.pipeline = p.name AND s.stream_id IS DISTINCT FROM p.current_stream
  AND b.stream_id = s.stream_id AND b.triggered_at < now() - %(horizon)s

-- name: to_take_back
-- The objects of rows that are no longer in the table, and that some consumer had read when they were.
SELECT f.path FROM sluice.delivery_file f
WHERE f.kind = 'data' AND f.delivery_id IN (
    SELECT c.delivery_id FROM sluice.change c WHERE c.pipeline = %(pipeline)s AND c.change = 'delete')
