-- What each delivery read of Kafka, and what a person accepted as gone before it could be read.

CREATE TABLE sluice.delivery_range (
    delivery_id     bigint NOT NULL REFERENCES sluice.delivery (delivery_id),
    pipeline        text NOT NULL,
    source          integer NOT NULL,
    topic           text NOT NULL,
    topic_id        text NOT NULL,
    partition       integer NOT NULL CHECK (partition >= 0),
    start_offset    bigint NOT NULL CHECK (start_offset >= 0),
    end_offset      bigint NOT NULL,
    PRIMARY KEY (delivery_id, topic_id, partition),
    CONSTRAINT one_offset_one_delivery UNIQUE (pipeline, topic_id, partition, end_offset),
    CONSTRAINT offsets_in_order CHECK (start_offset <= end_offset)
);
COMMENT ON TABLE sluice.delivery_range IS 'The offsets that a delivery read; of a partition each range starts where the one before it ended';
COMMENT ON COLUMN sluice.delivery_range.delivery_id IS 'The delivery';
COMMENT ON COLUMN sluice.delivery_range.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.delivery_range.source IS 'Which of the pipeline''s sources read it, from 0';
COMMENT ON COLUMN sluice.delivery_range.topic IS 'Name of the topic';
COMMENT ON COLUMN sluice.delivery_range.topic_id IS 'Kafka''s own id of the topic: a topic that is deleted and made anew has another';
COMMENT ON COLUMN sluice.delivery_range.partition IS 'Number of the partition';
COMMENT ON COLUMN sluice.delivery_range.start_offset IS 'The first offset of the range';
COMMENT ON COLUMN sluice.delivery_range.end_offset IS 'The offset after its last; equal to start_offset where a partition was seen for the first time and had nothing to read';

CREATE TABLE sluice.accepted_gap (
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name),
    topic           text NOT NULL,
    topic_id        text NOT NULL,
    partition       integer NOT NULL CHECK (partition >= 0),
    start_offset    bigint NOT NULL CHECK (start_offset >= 0),
    end_offset      bigint CHECK (end_offset > start_offset),
    who             text NOT NULL,
    why             text NOT NULL,
    accepted_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, topic_id, partition, start_offset)
);
COMMENT ON TABLE sluice.accepted_gap IS 'Offsets that Kafka had no longer when they were to be read, and that a person accepted as lost';
COMMENT ON COLUMN sluice.accepted_gap.pipeline IS 'The pipeline that did not read them';
COMMENT ON COLUMN sluice.accepted_gap.topic IS 'Name of the topic';
COMMENT ON COLUMN sluice.accepted_gap.topic_id IS 'Kafka''s own id of the topic';
COMMENT ON COLUMN sluice.accepted_gap.partition IS 'Number of the partition';
COMMENT ON COLUMN sluice.accepted_gap.start_offset IS 'The first offset that is gone: where the last delivery of the partition ended';
COMMENT ON COLUMN sluice.accepted_gap.end_offset IS 'The offset after the last that is gone; null: the topic was deleted, and all that came after start_offset with it';
COMMENT ON COLUMN sluice.accepted_gap.who IS 'Who accepted it';
COMMENT ON COLUMN sluice.accepted_gap.why IS 'The reason given';
COMMENT ON COLUMN sluice.accepted_gap.accepted_at IS 'When';
