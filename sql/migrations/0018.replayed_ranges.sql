-- A replay reads ranges of offsets again: they are in force once, and a delivery may read several of one partition.

ALTER TABLE sluice.delivery_range
    ADD COLUMN live boolean NOT NULL DEFAULT true,
    DROP CONSTRAINT one_offset_one_delivery,
    DROP CONSTRAINT delivery_range_pkey,
    ADD PRIMARY KEY (delivery_id, topic_id, partition, start_offset);
CREATE UNIQUE INDEX one_offset_one_delivery ON sluice.delivery_range (pipeline, topic_id, partition, end_offset) WHERE live;
COMMENT ON COLUMN sluice.delivery_range.live IS 'False once a later delivery took its place';
