-- name: insert
-- What a delivery read of Kafka.
INSERT INTO sluice.delivery_range (delivery_id, pipeline, source, topic, topic_id, partition, start_offset, end_offset)
VALUES %s

-- name: of_delivery
-- What a delivery read of Kafka, as it is on record.
SELECT source, topic, topic_id, partition, start_offset AS start, end_offset AS "end"
FROM sluice.delivery_range WHERE delivery_id = %(delivery)s ORDER BY source, topic, partition

-- name: reached_of
-- How far the pipeline has come in each of these partitions, accepted gaps included; null: nothing was read of it yet.
SELECT wanted.topic_id, wanted.partition, greatest(
    (SELECT max(r.end_offset) FROM sluice.delivery_range r
     WHERE (r.pipeline, r.topic_id, r.partition) = (%(pipeline)s, wanted.topic_id, wanted.partition)),
    (SELECT max(g.end_offset) FROM sluice.accepted_gap g
     WHERE (g.pipeline, g.topic_id, g.partition) = (%(pipeline)s, wanted.topic_id, wanted.partition)))
FROM unnest(%(topic_ids)s::text[], %(partitions)s::integer[]) AS wanted (topic_id, partition)

-- name: reached
-- How far the pipeline has come in each partition, accepted gaps included; without topics that were accepted as deleted.
SELECT read.topic, read.topic_id, read.partition, max(read.end_offset) AS reached
FROM (SELECT topic, topic_id, partition, end_offset FROM sluice.delivery_range WHERE pipeline = %(pipeline)s
      UNION ALL
      SELECT topic, topic_id, partition, end_offset FROM sluice.accepted_gap WHERE pipeline = %(pipeline)s) read
WHERE NOT EXISTS (
    SELECT FROM sluice.accepted_gap gone
    WHERE gone.pipeline = %(pipeline)s AND gone.topic_id = read.topic_id AND gone.end_offset IS NULL)
GROUP BY read.topic, read.topic_id, read.partition ORDER BY read.topic, read.topic_id, read.partition

-- name: accept_gap
-- Records offsets that are gone, and who accepted it.
INSERT INTO sluice.accepted_gap (pipeline, topic, topic_id, partition, start_offset, end_offset, who, why)
VALUES (%(pipeline)s, %(topic)s, %(topic_id)s, %(partition)s, %(start)s, %(end)s, %(who)s, %(why)s)
ON CONFLICT (pipeline, topic_id, partition, start_offset) DO UPDATE
SET end_offset = excluded.end_offset, who = excluded.who, why = excluded.why, accepted_at = now()
