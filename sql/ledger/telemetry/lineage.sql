-- name: note
-- Puts a delivery on record as one to send an event for, in its own commit.
INSERT INTO sluice.lineage_event (delivery_id, columns, sources, parent, made_of)
VALUES (%(delivery)s, %(columns)s, %(sources)s::text[], %(parent)s, %(made_of)s)

-- name: unsent
-- The deliveries whose events are still to be sent, of one pipeline or of all, the oldest first.
SELECT e.delivery_id FROM sluice.lineage_event e JOIN sluice.delivery d USING (delivery_id)
WHERE e.sent_at IS NULL AND d.pipeline = coalesce(%(pipeline)s, d.pipeline) ORDER BY e.delivery_id LIMIT %(limit)s

-- name: chosen
-- The deliveries of a pipeline whose numbers are between these, in force or not.
SELECT d.delivery_id FROM sluice.delivery d
WHERE d.pipeline = %(pipeline)s AND d.delivery_id BETWEEN %(first)s AND %(last)s ORDER BY d.delivery_id

-- name: sent
-- Notes that the receiver has taken a delivery's event.
INSERT INTO sluice.lineage_event (delivery_id, sent_at) VALUES (%(delivery)s, now())
ON CONFLICT (delivery_id) DO UPDATE SET sent_at = now()

-- name: delivery
-- What an event says of a delivery, of the run that made it, and of the try of Airflow that asked for that run.
SELECT d.delivery_id, d.pipeline, d.stream_id::text, d.batch_id, d.run_id::text, d.kind, d.commit_seq, d.committed_at,
       d.rows_in, d.records, d.delivered, d.quarantined, d.malformed, d.late, d.dropped, d.suite_digest, d.lookups, d.snapshot_id,
       d.released_from, d.manifest, p.table_schema, p.table_name, e.columns, e.sources, e.parent, e.made_of,
       a.dag_id, a.dag_run_id, a.task_id, a.try_number, q.report,
       (SELECT coalesce(array_agg(o.delivery_id ORDER BY o.delivery_id), ARRAY[]::bigint[]) FROM sluice.delivery o
        WHERE o.superseded_by = d.delivery_id) AS replaces
FROM sluice.delivery d JOIN sluice.pipeline p ON p.name = d.pipeline
LEFT JOIN sluice.lineage_event e USING (delivery_id)
LEFT JOIN sluice.quality q USING (delivery_id)
LEFT JOIN LATERAL (SELECT * FROM sluice.airflow_try a WHERE a.run_id = d.run_id
                   ORDER BY a.started_at DESC LIMIT 1) a ON true
WHERE d.delivery_id = %(delivery)s

-- name: files
-- The files that a delivery read, by source; those of lookups are in its own row.
SELECT i.source, count(*) AS files, sum(i.size)::bigint AS bytes, (array_agg(i.uri ORDER BY i.path))[1:%(most)s] AS uris
FROM sluice.delivery_input i WHERE i.delivery_id = %(delivery)s AND i.source >= 0 GROUP BY i.source ORDER BY i.source

-- name: topics
-- The topics that a delivery read.
SELECT o.topic, sum(o.end_offset - o.start_offset)::bigint AS records, array_agg(
    format('kafka://%%s/%%s/%%s-%%s', o.topic, o.partition, o.start_offset, o.end_offset) ORDER BY o.partition) AS uris
FROM sluice.delivery_range o WHERE o.delivery_id = %(delivery)s GROUP BY o.topic ORDER BY o.topic

-- name: rules
-- The verdict of each rule on a delivery.
SELECT r.number, r.reason, r.expectation, r.severity, r.success, r.element_count, r.unexpected_count
FROM sluice.quality_rule r WHERE r.delivery_id = %(delivery)s ORDER BY r.number

-- name: written
-- The objects that a delivery added to the lake's table.
SELECT count(*) AS files, coalesce(sum(f.bytes), 0)::bigint AS bytes FROM sluice.delivery_file f
WHERE f.delivery_id = %(delivery)s AND f.kind = 'data'
