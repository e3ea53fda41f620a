-- name: insert_delivery
-- The ledger row of a delivery; the caller holds the lock of the pipeline's row.
WITH next AS (
    UPDATE sluice.pipeline SET commit_seq = commit_seq + 1 WHERE name = %(pipeline)s RETURNING commit_seq
)
INSERT INTO sluice.delivery (delivery_id, pipeline, stream_id, batch_id, commit_seq, run_id, rows_in, delivered,
    quarantined, malformed, checksum, quarantine_checksum, suite_digest, lookups, manifest, previous_delivery,
    metadata_location, quarantine_metadata_location, snapshot_id, kind, released_from, watermark_ms, time_ms,
    records, late, dropped, unknown, missing)
SELECT %(delivery)s, %(pipeline)s, %(stream)s, %(batch)s, next.commit_seq, %(run)s, %(rows_in)s, %(delivered)s,
    %(quarantined)s, %(malformed)s, %(checksum)s, %(quarantine_checksum)s, %(suite_digest)s, %(lookups)s,
    %(manifest)s, %(previous)s, %(metadata_location)s, %(quarantine_metadata_location)s, %(snapshot_id)s,
    %(kind)s, %(released_from)s, %(watermark_ms)s, %(time_ms)s, %(records)s, %(late)s, %(dropped)s,
    %(unknown)s, %(missing)s
FROM next

-- name: insert_inputs
-- The inputs of a delivery.
INSERT INTO sluice.delivery_input (delivery_id, pipeline, path, uri, size, mtime_ms, etag, source) VALUES %s

-- name: insert_files
-- The Parquet files of a delivery.
INSERT INTO sluice.delivery_file (delivery_id, kind, path, rows, bytes) VALUES %s

-- name: insert_quality
-- The verdict on a delivery, and what it means for whoever reads the rows; its rules are there already.
INSERT INTO sluice.quality (delivery_id, success, report, pipeline, commit_seq, state)
SELECT d.delivery_id, %(success)s, %(report)s, d.pipeline, d.commit_seq, CASE
        WHEN d.dropped > 0 THEN 'partial'
        WHEN d.delivered > 0 AND (
            EXISTS (SELECT FROM sluice.quality_rule r WHERE r.delivery_id = d.delivery_id AND NOT r.success
                    AND r.severity <> 'info' AND r.unexpected_count IS NULL)
            OR EXISTS (SELECT FROM sluice.stopped_batch s WHERE s.decision = 'accept'
                       AND (s.stream_id, s.batch_id) = (d.stream_id, d.batch_id))) THEN 'flawed'
        WHEN d.quarantined > 0 THEN 'held'
        WHEN NOT %(success)s THEN 'noted'
        ELSE 'good' END
FROM sluice.delivery d WHERE d.delivery_id = %(delivery)s

-- name: insert_quality_rules
-- The verdict rule by rule.
INSERT INTO sluice.quality_rule (delivery_id, number, reason, expectation, severity, success, element_count,
    unexpected_count, evaluated, rule_id, dimension, owner) VALUES %s

-- name: insert_column_metrics
-- What the columns of the batch looked like.
INSERT INTO sluice.column_metric (delivery_id, column_name, number, rows_seen, null_count, nan_count, minimum, maximum,
    mean, deviation, earliest, latest, distinct_estimate, p05, p50, p95, distinct_sketch, quantile_sketch) VALUES %s
