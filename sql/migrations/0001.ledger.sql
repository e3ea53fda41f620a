-- The ledger, the quarantine, the quality reports and pyiceberg's own catalog tables. Forward only.

COMMENT ON SCHEMA sluice_stage IS 'Unlogged staging tables, two per attempt, named by its delivery id';

CREATE TABLE sluice.pipeline (
    name            text PRIMARY KEY,
    table_schema    text NOT NULL,
    table_name      text NOT NULL,
    current_stream  uuid,
    lease_token     uuid,
    commit_seq      bigint NOT NULL DEFAULT 0 CHECK (commit_seq >= 0),
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT one_table_one_pipeline UNIQUE (table_schema, table_name)
);
COMMENT ON TABLE sluice.pipeline IS 'One row a pipeline; every commit of the pipeline locks this row';
COMMENT ON COLUMN sluice.pipeline.name IS 'The declared name';
COMMENT ON COLUMN sluice.pipeline.table_schema IS 'Schema of the warehouse table';
COMMENT ON COLUMN sluice.pipeline.table_name IS 'Name of the warehouse table; it belongs to this pipeline alone';
COMMENT ON COLUMN sluice.pipeline.current_stream IS 'The only stream that may commit: the id in the metadata file of the checkpoint in use';
COMMENT ON COLUMN sluice.pipeline.lease_token IS 'The run that may commit; null when nobody runs';
COMMENT ON COLUMN sluice.pipeline.commit_seq IS 'Number of the last commit, given under the lock of this row';
COMMENT ON COLUMN sluice.pipeline.created_at IS 'When the pipeline first ran';

CREATE TABLE sluice.stream (
    stream_id       uuid PRIMARY KEY,
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name),
    checkpoint      text NOT NULL,
    first_batch     bigint NOT NULL CHECK (first_batch >= 0),
    started_at      timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE sluice.stream IS 'Every checkpoint that a pipeline ever ran on';
COMMENT ON COLUMN sluice.stream.stream_id IS 'The id in the checkpoint''s metadata file';
COMMENT ON COLUMN sluice.stream.pipeline IS 'The pipeline that it belongs to';
COMMENT ON COLUMN sluice.stream.checkpoint IS 'Where the checkpoint is';
COMMENT ON COLUMN sluice.stream.first_batch IS 'The first batch id to be delivered: 0, or 1 when the checkpoint was seeded by recover';
COMMENT ON COLUMN sluice.stream.started_at IS 'When it was registered';

CREATE TABLE sluice.run (
    run_id          uuid PRIMARY KEY,
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name),
    stream_id       uuid REFERENCES sluice.stream (stream_id),
    holder          text NOT NULL,
    started_at      timestamptz NOT NULL DEFAULT now(),
    seen_at         timestamptz NOT NULL DEFAULT now(),
    ended_at        timestamptz,
    outcome         text
);
COMMENT ON TABLE sluice.run IS 'One row a run';
COMMENT ON COLUMN sluice.run.run_id IS 'Random id of the run; also the lease token it was given';
COMMENT ON COLUMN sluice.run.pipeline IS 'What ran';
COMMENT ON COLUMN sluice.run.stream_id IS 'The stream it ran on';
COMMENT ON COLUMN sluice.run.holder IS 'Host and process';
COMMENT ON COLUMN sluice.run.started_at IS 'When it took the lease';
COMMENT ON COLUMN sluice.run.seen_at IS 'Last heartbeat; decides who waits, never what is safe';
COMMENT ON COLUMN sluice.run.ended_at IS 'When it gave the lease back; null while it runs, or when it was killed';
COMMENT ON COLUMN sluice.run.outcome IS 'done, or the name of the error that ended it';

CREATE SEQUENCE sluice.delivery_number;

CREATE TABLE sluice.attempt (
    delivery_id     bigint PRIMARY KEY DEFAULT nextval('sluice.delivery_number'),
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name),
    stream_id       uuid NOT NULL REFERENCES sluice.stream (stream_id),
    batch_id        bigint NOT NULL CHECK (batch_id >= 0),
    lease_token     uuid NOT NULL REFERENCES sluice.run (run_id),
    opened_at       timestamptz NOT NULL DEFAULT now(),
    closed_at       timestamptz,
    outcome         text,
    adopted         boolean NOT NULL DEFAULT false,
    CONSTRAINT outcome_known CHECK (outcome IN ('delivered', 'stopped', 'failed', 'fenced')),
    CONSTRAINT closed_has_outcome CHECK ((closed_at IS NULL) = (outcome IS NULL))
);
CREATE INDEX attempt_open ON sluice.attempt (pipeline) WHERE closed_at IS NULL;
COMMENT ON TABLE sluice.attempt IS 'Every try to deliver a batch, committed before its first object is written';
COMMENT ON COLUMN sluice.attempt.delivery_id IS 'Reserved number of the delivery; gaps are normal';
COMMENT ON COLUMN sluice.attempt.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.attempt.stream_id IS 'The stream';
COMMENT ON COLUMN sluice.attempt.batch_id IS 'Spark''s batch id within the stream';
COMMENT ON COLUMN sluice.attempt.lease_token IS 'The run that tried';
COMMENT ON COLUMN sluice.attempt.opened_at IS 'When its number was reserved';
COMMENT ON COLUMN sluice.attempt.closed_at IS 'When it was delivered, given up, or fenced by the next run';
COMMENT ON COLUMN sluice.attempt.adopted IS 'Put back by recover after PostgreSQL lost it: until it is delivered, its objects may be all that is left of its rows';
COMMENT ON COLUMN sluice.attempt.outcome IS 'delivered, stopped (by its suite), failed, or fenced';

CREATE TABLE sluice.delivery (
    delivery_id     bigint PRIMARY KEY,
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name),
    stream_id       uuid NOT NULL REFERENCES sluice.stream (stream_id),
    batch_id        bigint NOT NULL CHECK (batch_id >= 0),
    commit_seq      bigint NOT NULL CHECK (commit_seq > 0),
    live            boolean NOT NULL DEFAULT true,
    run_id          uuid NOT NULL REFERENCES sluice.run (run_id),
    rows_in         bigint NOT NULL CHECK (rows_in >= 0),
    delivered       bigint NOT NULL CHECK (delivered >= 0),
    quarantined     bigint NOT NULL CHECK (quarantined >= 0),
    malformed       bigint NOT NULL CHECK (malformed >= 0),
    checksum        numeric NOT NULL,
    quarantine_checksum numeric NOT NULL,
    suite_digest    text NOT NULL,
    lookups         jsonb NOT NULL,
    manifest        text NOT NULL,
    previous_delivery bigint,
    metadata_location text NOT NULL,
    quarantine_metadata_location text NOT NULL,
    snapshot_id     bigint,
    committed_at    timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT one_commit_one_number UNIQUE (pipeline, commit_seq),
    CONSTRAINT rows_conserved CHECK (rows_in = delivered + quarantined AND malformed <= quarantined)
);
CREATE UNIQUE INDEX one_batch_one_delivery ON sluice.delivery (stream_id, batch_id) WHERE live;
COMMENT ON TABLE sluice.delivery IS 'The ledger: one row a committed delivery, never deleted';
COMMENT ON COLUMN sluice.delivery.delivery_id IS 'Number that every delivered row carries as _delivery_id';
COMMENT ON COLUMN sluice.delivery.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.delivery.stream_id IS 'The stream';
COMMENT ON COLUMN sluice.delivery.batch_id IS 'Spark''s batch id within the stream';
COMMENT ON COLUMN sluice.delivery.commit_seq IS 'Order of the pipeline''s commits';
COMMENT ON COLUMN sluice.delivery.live IS 'False once a later delivery took its place';
COMMENT ON COLUMN sluice.delivery.run_id IS 'The run that delivered it';
COMMENT ON COLUMN sluice.delivery.rows_in IS 'Rows of the transform''s output and the malformed records';
COMMENT ON COLUMN sluice.delivery.delivered IS 'Rows in both sinks';
COMMENT ON COLUMN sluice.delivery.quarantined IS 'Rows held, the malformed ones included';
COMMENT ON COLUMN sluice.delivery.malformed IS 'Records that could not be parsed; part of quarantined';
COMMENT ON COLUMN sluice.delivery.checksum IS 'Sum of the row hashes of the delivered rows, modulo 2^64: the order of the rows does not matter';
COMMENT ON COLUMN sluice.delivery.quarantine_checksum IS 'The same of the quarantined rows of the lake';
COMMENT ON COLUMN sluice.delivery.suite_digest IS 'SHA-256 of the suite that judged the batch';
COMMENT ON COLUMN sluice.delivery.lookups IS 'Files and evidence of each lookup that was joined';
COMMENT ON COLUMN sluice.delivery.manifest IS 'URI of the delivery manifest';
COMMENT ON COLUMN sluice.delivery.previous_delivery IS 'The pipeline''s delivery before this one';
COMMENT ON COLUMN sluice.delivery.metadata_location IS 'Iceberg metadata of the table as of this commit';
COMMENT ON COLUMN sluice.delivery.quarantine_metadata_location IS 'Iceberg metadata of the quarantine table as of this commit';
COMMENT ON COLUMN sluice.delivery.snapshot_id IS 'Iceberg snapshot that added the files; null when the batch delivered no row';
COMMENT ON COLUMN sluice.delivery.committed_at IS 'Start of the transaction that committed it; for people';

CREATE TABLE sluice.delivery_input (
    delivery_id     bigint NOT NULL REFERENCES sluice.delivery (delivery_id),
    pipeline        text NOT NULL,
    path            text NOT NULL,
    uri             text NOT NULL,
    size            bigint NOT NULL,
    mtime_ms        bigint NOT NULL,
    etag            text,
    source          integer NOT NULL,
    live            boolean NOT NULL DEFAULT true,
    PRIMARY KEY (delivery_id, path)
);
CREATE UNIQUE INDEX one_input_one_delivery ON sluice.delivery_input (pipeline, path) WHERE live;
COMMENT ON TABLE sluice.delivery_input IS 'The files that a delivery was read from; a file is in one live delivery at most';
COMMENT ON COLUMN sluice.delivery_input.delivery_id IS 'The delivery';
COMMENT ON COLUMN sluice.delivery_input.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.delivery_input.path IS 'Identity: path below the landing zone, or the whole URI outside of it';
COMMENT ON COLUMN sluice.delivery_input.uri IS 'Where it was read from';
COMMENT ON COLUMN sluice.delivery_input.size IS 'Evidence: bytes';
COMMENT ON COLUMN sluice.delivery_input.mtime_ms IS 'Evidence: last change, milliseconds since 1970';
COMMENT ON COLUMN sluice.delivery_input.etag IS 'Evidence: the object store''s entity tag, where there is one';
COMMENT ON COLUMN sluice.delivery_input.source IS 'Which of the pipeline''s sources read it, from 0';
COMMENT ON COLUMN sluice.delivery_input.live IS 'False once the delivery was superseded';

CREATE TABLE sluice.delivery_file (
    delivery_id     bigint NOT NULL REFERENCES sluice.delivery (delivery_id),
    kind            text NOT NULL CHECK (kind IN ('data', 'quarantine')),
    path            text NOT NULL,
    rows            bigint NOT NULL CHECK (rows > 0),
    bytes           bigint NOT NULL CHECK (bytes > 0),
    PRIMARY KEY (delivery_id, path)
);
COMMENT ON TABLE sluice.delivery_file IS 'The Parquet files that a delivery committed';
COMMENT ON COLUMN sluice.delivery_file.delivery_id IS 'The delivery';
COMMENT ON COLUMN sluice.delivery_file.kind IS 'data: the pipeline''s table; quarantine: the table beside it';
COMMENT ON COLUMN sluice.delivery_file.path IS 's3:// URI';
COMMENT ON COLUMN sluice.delivery_file.rows IS 'Rows in the file';
COMMENT ON COLUMN sluice.delivery_file.bytes IS 'Size of the file';

CREATE TABLE sluice.quarantine (
    quarantine_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name),
    delivery_id     bigint NOT NULL REFERENCES sluice.delivery (delivery_id),
    stream_id       uuid NOT NULL,
    batch_id        bigint NOT NULL,
    reasons         text[] NOT NULL CHECK (cardinality(reasons) > 0),
    status          text NOT NULL DEFAULT 'held' CHECK (status IN ('held', 'released', 'discarded')),
    source_path     text,
    raw             text,
    row             text
);
CREATE INDEX quarantine_by_delivery ON sluice.quarantine (delivery_id);
CREATE INDEX quarantine_held ON sluice.quarantine (pipeline) WHERE status = 'held';
COMMENT ON TABLE sluice.quarantine IS 'Every row that was held back, with all the rules it broke';
COMMENT ON COLUMN sluice.quarantine.quarantine_id IS 'Key';
COMMENT ON COLUMN sluice.quarantine.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.quarantine.delivery_id IS 'The delivery whose batch it came in';
COMMENT ON COLUMN sluice.quarantine.stream_id IS 'The stream';
COMMENT ON COLUMN sluice.quarantine.batch_id IS 'Spark''s batch id within the stream';
COMMENT ON COLUMN sluice.quarantine.reasons IS 'Every rule that the row breaks, in the order of the suite; malformed for records that could not be parsed';
COMMENT ON COLUMN sluice.quarantine.status IS 'held, released or discarded';
COMMENT ON COLUMN sluice.quarantine.source_path IS 'The file it came from, where known';
COMMENT ON COLUMN sluice.quarantine.raw IS 'The record as it was read, where known; a NUL character, which text can''t hold, is written \u0000';
COMMENT ON COLUMN sluice.quarantine.row IS 'The row as JSON text: not jsonb, which refuses \u0000 and NaN';

CREATE TABLE sluice.quality (
    delivery_id     bigint PRIMARY KEY REFERENCES sluice.delivery (delivery_id),
    success         boolean NOT NULL,
    report          text NOT NULL
);
COMMENT ON TABLE sluice.quality IS 'The verdict on each delivered batch';
COMMENT ON COLUMN sluice.quality.delivery_id IS 'The delivery';
COMMENT ON COLUMN sluice.quality.success IS 'Great Expectations'' verdict on the whole suite';
COMMENT ON COLUMN sluice.quality.report IS 'The results as Great Expectations'' JSON; text because it may hold NaN';

CREATE TABLE sluice.quality_rule (
    delivery_id     bigint NOT NULL REFERENCES sluice.delivery (delivery_id),
    number          integer NOT NULL,
    reason          text NOT NULL,
    expectation     text NOT NULL,
    severity        text NOT NULL,
    success         boolean NOT NULL,
    element_count   bigint,
    unexpected_count bigint,
    evaluated       text NOT NULL,
    PRIMARY KEY (delivery_id, number)
);
COMMENT ON TABLE sluice.quality_rule IS 'The verdict rule by rule';
COMMENT ON COLUMN sluice.quality_rule.delivery_id IS 'The delivery';
COMMENT ON COLUMN sluice.quality_rule.number IS 'Place in the suite, from 0';
COMMENT ON COLUMN sluice.quality_rule.reason IS 'Name that quarantined rows carry';
COMMENT ON COLUMN sluice.quality_rule.expectation IS 'Great Expectations'' expectation type';
COMMENT ON COLUMN sluice.quality_rule.severity IS 'info, warning or critical';
COMMENT ON COLUMN sluice.quality_rule.success IS 'Whether the expectation held, mostly considered';
COMMENT ON COLUMN sluice.quality_rule.element_count IS 'Rows judged; null for table and aggregate rules';
COMMENT ON COLUMN sluice.quality_rule.unexpected_count IS 'Rows that broke the rule; null for table and aggregate rules';
COMMENT ON COLUMN sluice.quality_rule.evaluated IS 'pass: in the one pass; gx: by Great Expectations on the staged rows';

CREATE TABLE sluice.stopped_batch (
    stream_id       uuid NOT NULL REFERENCES sluice.stream (stream_id),
    batch_id        bigint NOT NULL,
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name),
    stops           text[] NOT NULL,
    report          text NOT NULL,
    stopped_at      timestamptz NOT NULL DEFAULT now(),
    decision        text CHECK (decision IN ('quarantine-all', 'accept')),
    decided_by      text,
    why             text,
    decided_at      timestamptz,
    PRIMARY KEY (stream_id, batch_id),
    CONSTRAINT decided_wholly CHECK (num_nulls(decision, decided_by, why, decided_at) IN (0, 4))
);
COMMENT ON TABLE sluice.stopped_batch IS 'Batches that broke their contract, and what a person decided';
COMMENT ON COLUMN sluice.stopped_batch.stream_id IS 'The stream';
COMMENT ON COLUMN sluice.stopped_batch.batch_id IS 'Spark''s batch id within the stream';
COMMENT ON COLUMN sluice.stopped_batch.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.stopped_batch.stops IS 'What stopped it';
COMMENT ON COLUMN sluice.stopped_batch.report IS 'The results as Great Expectations'' JSON';
COMMENT ON COLUMN sluice.stopped_batch.stopped_at IS 'When it was last stopped';
COMMENT ON COLUMN sluice.stopped_batch.decision IS 'quarantine-all: hold the failing rows; accept: deliver them; null: not decided';
COMMENT ON COLUMN sluice.stopped_batch.decided_by IS 'Who decided';
COMMENT ON COLUMN sluice.stopped_batch.why IS 'The reason given';
COMMENT ON COLUMN sluice.stopped_batch.decided_at IS 'When';

CREATE TABLE sluice.iceberg_tables (
    catalog_name    varchar(255) NOT NULL,
    table_namespace varchar(255) NOT NULL,
    table_name      varchar(255) NOT NULL,
    metadata_location varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type    varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
COMMENT ON TABLE sluice.iceberg_tables IS 'pyiceberg''s SQL catalog: the pointer to each table''s current metadata';

CREATE TABLE sluice.iceberg_namespace_properties (
    catalog_name    varchar(255) NOT NULL,
    namespace       varchar(255) NOT NULL,
    property_key    varchar(255) NOT NULL,
    property_value  varchar(1000) NOT NULL,
    PRIMARY KEY (catalog_name, namespace, property_key)
);
COMMENT ON TABLE sluice.iceberg_namespace_properties IS 'pyiceberg''s SQL catalog: namespaces';

CREATE VIEW sluice.delivered_file AS
    SELECT d.pipeline, d.delivery_id, d.stream_id, d.batch_id, f.kind, f.path, f.rows, f.bytes
    FROM sluice.delivery_file f JOIN sluice.delivery d USING (delivery_id)
    WHERE d.live;
COMMENT ON VIEW sluice.delivered_file IS 'Exactly the committed Parquet files of live deliveries';
