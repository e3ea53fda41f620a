-- name: insert
-- What a delivery read of Kafka.
INSERT INTO sluice.delivery_range (delivery_id, pipeline, source, topic, topic_id, partition, start_offset, end_offset)
VALUES %s

-- name: of_deliveries
-- What deliveries read of Kafka, as it is on record.
SELECT source, topic, topic_id, partition, start_offset AS start, end_offset AS "end"
FROM sluice.delivery_range WHERE delivery_id = ANY(%(deliveries)s) ORDER BY source, topic, topic_id, partition, start_offset

-- name: reached_of
-- How far the pipeline has come in each of these partitions, accepted gaps included; null: nothing was read of it yet.
SELECT wanted.topic_id, wanted.partition, greatest(
    (SELECT max(r.end_offset) FROM sluice.delivery_range r
     WHERE (r.pipeline, r.topic_id, r.partition) = (%(pipeline)s, wanted.topic_id, wanted.partition) AND r.live),
    (SELECT max(g.end_offset) FROM sluice.accepted_gap g
     WHERE (g.pipeline, g.topic_id, g.partition) = (%(pipeline)s, wanted.topic_id, wanted.partition)))
FROM unnest(%(topic_ids)s::text[], %(partitions)s::integer[]) AS wanted (topic_id, partition)

-- name: reached
-- How far the pipeline has come in each partition, accepted gaps included; without topics that were accepted as deleted.
-- Each partition is looked up in the index by itself: a run that stays up has a range of each for every batch.
WITH RECURSIVE seen AS (
    (SELECT topic_id, partition FROM sluice.delivery_range WHERE pipeline = %(pipeline)s AND live
     ORDER BY topic_id, partition LIMIT 1)
    UNION ALL
    SELECT next.topic_id, next.partition FROM seen CROSS JOIN LATERAL (
        SELECT r.topic_id, r.partition FROM sluice.delivery_range r
        WHERE r.pipeline = %(pipeline)s AND r.live AND (r.topic_id, r.partition) > (seen.topic_id, seen.partition)
        ORDER BY r.topic_id, r.partition LIMIT 1) next
)
SELECT coalesce(read.topic, gap.topic) AS topic, place.topic_id, place.partition,
       greatest(read.end_offset, gap.end_offset) AS reached
FROM (SELECT topic_id, partition FROM seen
      UNION SELECT topic_id, partition FROM sluice.accepted_gap WHERE pipeline = %(pipeline)s) place
LEFT JOIN LATERAL (
    SELECT r.topic, r.end_offset FROM sluice.delivery_range r
    WHERE (r.pipeline, r.topic_id, r.partition) = (%(pipeline)s, place.topic_id, place.partition) AND r.live
    ORDER BY r.end_offset DESC LIMIT 1) read ON true
LEFT JOIN LATERAL (
    SELECT g.topic, g.end_offset FROM sluice.accepted_gap g
    WHERE (g.pipeline, g.topic_id, g.partition) = (%(pipeline)s, place.topic_id, place.partition)
    ORDER BY g.end_offset DESC LIMIT 1) gap ON true
WHERE NOT EXISTS (
    SELECT FROM sluice.accepted_gap gone
    WHERE gone.pipeline = %(pipeline)s AND gone.topic_id = place.topic_id AND gone.end_offset IS NULL)
ORDER BY topic, place.topic_id, place.partition

-- name: accepted_ends
-- Where accepted gaps end, but for those of topics that were deleted.
SELECT topic_id, partition, start_offset, end_offset FROM sluice.accepted_gap
WHERE pipeline = %(pipeline)s AND end_offset IS NOT NULL

-- name: accept_gap
-- Records offsets that are gone, and who accepted it.
INSERT INTO sluice.accepted_gap (pipeline, topic, topic_id, partition, start_offset, end_offset, who, why)
VALUES (%(pipeline)s, %(topic)s, %(topic_id)s, %(partition)s, %(start)s, %(end)s, %(who)s, %(why)s)
ON CONFLICT (pipeline, topic_id, partition, start_offset) DO UPDATE
SET end_offset = excluded.end_offset, who = excluded.who, why = excluded.why, accepted_at = now()
