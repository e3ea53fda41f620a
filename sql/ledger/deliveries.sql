-- name: deliveries_in_force
-- The live deliveries of a pipeline in the order of their commits.
SELECT d.delivery_id, d.stream_id::text, d.batch_id, d.kind, d.commit_seq, d.released_from, d.delivered, d.quarantined,
       d.checksum, d.quarantine_checksum
FROM sluice.delivery d WHERE d.pipeline = %(pipeline)s AND d.live ORDER BY d.commit_seq

-- name: delivered_files
-- The committed files of a pipeline's live deliveries.
SELECT f.delivery_id, f.stream_id::text, f.batch_id, f.kind, f.path, f.rows, f.bytes
FROM sluice.delivered_file f JOIN sluice.delivery d USING (delivery_id)
WHERE f.pipeline = %(pipeline)s ORDER BY d.commit_seq, f.path

-- name: delivery_of_batch
-- The delivery of a batch, if there is one, whatever took its place since.
SELECT delivery_id, commit_seq, rows_in, delivered, quarantined, malformed
FROM sluice.delivery WHERE stream_id = %(stream)s AND batch_id = %(batch)s

-- name: delivery_exists
-- One row when the delivery is committed, by this run.
SELECT commit_seq FROM sluice.delivery WHERE delivery_id = %(delivery)s AND run_id = %(run)s

-- name: last_commit
-- The pipeline's newest delivery and what made it (no row: none yet).
SELECT commit_seq, delivery_id, run_id::text FROM sluice.delivery WHERE pipeline = %(pipeline)s ORDER BY commit_seq DESC LIMIT 1

-- name: inputs_of_delivery
-- The recorded inputs of a delivery.
SELECT path, uri, size, mtime_ms, etag, source FROM sluice.delivery_input WHERE delivery_id = %(delivery)s
ORDER BY path

-- name: live_inputs
-- The inputs of all live deliveries of a pipeline.
SELECT i.path, i.uri, i.size, i.mtime_ms, i.etag, i.source
FROM sluice.delivery_input i WHERE i.pipeline = %(pipeline)s AND i.live ORDER BY i.path

-- name: live_paths
-- The paths of the inputs of all live deliveries of a pipeline.
SELECT i.path FROM sluice.delivery_input i WHERE i.pipeline = %(pipeline)s AND i.live

-- name: live_among
-- Which of these paths are inputs of live deliveries of a pipeline.
SELECT i.path FROM sluice.delivery_input i
WHERE i.pipeline = %(pipeline)s AND i.live AND i.path = ANY(%(paths)s)

-- name: inputs_by_delivery
-- The inputs of all live deliveries of a pipeline, each with the delivery that has it.
SELECT i.delivery_id, i.path, i.uri, i.size, i.mtime_ms, i.etag, i.source
FROM sluice.delivery_input i WHERE i.pipeline = %(pipeline)s AND i.live ORDER BY i.source, i.path

-- name: live_deliveries
-- The live deliveries of a pipeline.
SELECT delivery_id FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live

-- name: holding
-- The deliveries of a pipeline that hold rows.
SELECT DISTINCT delivery_id FROM sluice.quarantine WHERE pipeline = %(pipeline)s AND status = 'held'

-- name: batches_in_force
-- The live deliveries of batches, in the order of their commits, with what each began with.
SELECT d.delivery_id, d.watermark_ms, coalesce(d.time_ms, (extract(epoch FROM d.committed_at) * 1000)::bigint)
FROM sluice.delivery d
WHERE d.pipeline = %(pipeline)s AND d.live AND d.kind IN ('stream', 'replay') ORDER BY d.commit_seq

-- name: last_before_watermark
-- The last batch in force that began with an earlier watermark than this one.
SELECT delivery_id FROM sluice.delivery
WHERE pipeline = %(pipeline)s AND live AND watermark_ms < %(watermark)s ORDER BY commit_seq DESC LIMIT 1

-- name: newest
-- The pipeline's newest delivery, and where it left the metadata of its table and of its quarantine.
SELECT delivery_id, metadata_location AS data, quarantine_metadata_location AS quarantine FROM sluice.delivery
WHERE pipeline = %(pipeline)s ORDER BY commit_seq DESC LIMIT 1

-- name: origins
-- These deliveries; of released rows, the delivery that had held them first.
WITH RECURSIVE found AS (
    SELECT delivery_id, released_from FROM sluice.delivery WHERE delivery_id = ANY(%(deliveries)s)
    UNION
    SELECT d.delivery_id, d.released_from FROM sluice.delivery d JOIN found f ON d.delivery_id = f.released_from
)
SELECT delivery_id FROM found WHERE released_from IS NULL

-- name: new_drift
-- The fields that some deliveries counted as unknown or missing, and the one before them did not, withdrawn or in force. A
-- release and a withdrawal count none: they read no records.
WITH given AS (
    SELECT d.commit_seq, coalesce(d.unknown, '{{}}') || coalesce(d.missing, '{{}}') AS fields
    FROM sluice.delivery d WHERE d.pipeline = %(pipeline)s AND d.delivery_id = ANY (%(deliveries)s)
), before AS (
    SELECT coalesce(b.unknown, '{{}}') || coalesce(b.missing, '{{}}') AS fields
    FROM sluice.delivery b WHERE b.pipeline = %(pipeline)s AND b.kind IN ('stream', 'replay')
      AND b.commit_seq < (SELECT min(g.commit_seq) FROM given g)
    ORDER BY b.commit_seq DESC LIMIT 1
)
SELECT DISTINCT key FROM given g, jsonb_object_keys(g.fields) AS key
WHERE NOT EXISTS (SELECT FROM before b WHERE b.fields ? key) ORDER BY key
