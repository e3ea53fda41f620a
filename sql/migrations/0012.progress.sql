-- What Spark told of each batch, what ended a run early, and which runs are at work.

CREATE TABLE sluice.batch_progress (
    stream_id       uuid NOT NULL REFERENCES sluice.stream (stream_id),
    batch_id        bigint NOT NULL CHECK (batch_id >= 0),
    run_id          uuid NOT NULL REFERENCES sluice.run (run_id),
    triggered_at    timestamptz NOT NULL,
    input_rows      bigint NOT NULL,
    input_rate      double precision,
    processed_rate  double precision,
    durations_ms    jsonb NOT NULL,
    phases_ms       jsonb NOT NULL,
    watermark       timestamptz,
    latest          timestamptz,
    operators       jsonb NOT NULL,
    state_rows      bigint,
    state_bytes     bigint,
    dropped         bigint,
    ends            text[] NOT NULL,
    PRIMARY KEY (stream_id, batch_id)
);
COMMENT ON TABLE sluice.batch_progress IS 'One row a micro-batch that Spark ran to its end: how long it took and what for, its rates, its state. Written beside the delivery, some seconds after it; the newest of each stream, as many as its checkpoint keeps';
COMMENT ON COLUMN sluice.batch_progress.stream_id IS 'The stream';
COMMENT ON COLUMN sluice.batch_progress.batch_id IS 'Spark''s batch id within the stream';
COMMENT ON COLUMN sluice.batch_progress.run_id IS 'The run that ran it';
COMMENT ON COLUMN sluice.batch_progress.triggered_at IS 'When Spark began to look for it';
COMMENT ON COLUMN sluice.batch_progress.input_rows IS 'Rows that its sources gave, as Spark counts them: as often as they were read';
COMMENT ON COLUMN sluice.batch_progress.input_rate IS 'Such rows per second since the batch before began; null: the first of a run';
COMMENT ON COLUMN sluice.batch_progress.processed_rate IS 'Such rows per second of the batch''s own time';
COMMENT ON COLUMN sluice.batch_progress.durations_ms IS 'How long Spark''s phases took, in ms, by Spark''s names: triggerExecution is the whole, addBatch all of Sluice''s work';
COMMENT ON COLUMN sluice.batch_progress.phases_ms IS 'How long the phases of the delivery took, in ms: stage (read, transform, write), judge, draft (metadata on S3), transaction; empty where it had been delivered before';
COMMENT ON COLUMN sluice.batch_progress.watermark IS 'The watermark that the batch ran with; null: none yet, or the transform has none';
COMMENT ON COLUMN sluice.batch_progress.latest IS 'The latest event time that it read, of a transform with a watermark';
COMMENT ON COLUMN sluice.batch_progress.operators IS 'The operators that keep state: name, rows, updated, removed, bytes (memory), dropped (behind the watermark), each as of the batch''s end; empty: it keeps none';
COMMENT ON COLUMN sluice.batch_progress.state_rows IS 'Rows of state of all operators; null: it keeps none';
COMMENT ON COLUMN sluice.batch_progress.state_bytes IS 'Memory of all operators'' state, as Spark counts it';
COMMENT ON COLUMN sluice.batch_progress.dropped IS 'Rows, or groups of them, that all operators left out behind the watermark';
COMMENT ON COLUMN sluice.batch_progress.ends IS 'Each source and how far it was read, in short';

ALTER TABLE sluice.run ADD COLUMN message text, ADD COLUMN remedy text;
COMMENT ON COLUMN sluice.run.message IS 'What the error that ended it said, at most 500 characters, without secrets; null: it ended well, or before this was kept';
COMMENT ON COLUMN sluice.run.remedy IS 'What that error named as the next step';
CREATE INDEX run_open ON sluice.run (pipeline) WHERE ended_at IS NULL;
