-- The versions of the models that transforms score rows with.

CREATE TABLE sluice.model (
    pipeline          text NOT NULL,
    name              text NOT NULL,
    version           integer NOT NULL CHECK (version > 0),
    location          text NOT NULL UNIQUE,
    bytes             bigint NOT NULL CHECK (bytes > 0),
    digest            text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'),
    threshold         double precision NOT NULL,
    trained_on        text NOT NULL,
    metadata_location text NOT NULL,
    deliveries        integer NOT NULL CHECK (deliveries > 0),
    rows_there        bigint NOT NULL CHECK (rows_there >= rows_fitted),
    rows_fitted       bigint NOT NULL CHECK (rows_fitted > 0),
    report            json NOT NULL,
    made_by           text NOT NULL,
    made_at           timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, name, version)
);
COMMENT ON TABLE sluice.model IS 'Every version of every model that `sluice train` made; a row is never changed, and the one with the highest version is in force';
COMMENT ON COLUMN sluice.model.pipeline IS 'The pipeline whose transform takes it';
COMMENT ON COLUMN sluice.model.name IS 'As the pipeline''s declaration calls it';
COMMENT ON COLUMN sluice.model.version IS 'From 1';
COMMENT ON COLUMN sluice.model.location IS 'The object on the lake, ONNX; it is written once, and `sluice sweep` leaves it alone';
COMMENT ON COLUMN sluice.model.bytes IS 'The model''s size';
COMMENT ON COLUMN sluice.model.digest IS 'SHA-256 of the model''s bytes: others are not loaded';
COMMENT ON COLUMN sluice.model.threshold IS 'The score above which a row counts as an anomaly';
COMMENT ON COLUMN sluice.model.trained_on IS 'The pipeline whose delivered rows it learned from';
COMMENT ON COLUMN sluice.model.metadata_location IS 'That pipeline''s Iceberg metadata as of then: exactly these rows';
COMMENT ON COLUMN sluice.model.deliveries IS 'How many live deliveries they came from';
COMMENT ON COLUMN sluice.model.rows_there IS 'How many rows there were';
COMMENT ON COLUMN sluice.model.rows_fitted IS 'How many of them it learned from: of a sample, without the holdout and without rows that lack a value';
COMMENT ON COLUMN sluice.model.report IS 'The evaluation report, as report.json beside the model has it: the rows held out, the share of them above the threshold, quantiles of their scores, precision and recall where there are labels; and the settings: the model as declared, and the library that fitted it';
COMMENT ON COLUMN sluice.model.made_by IS 'Who trained it';
COMMENT ON COLUMN sluice.model.made_at IS 'When';

COMMENT ON COLUMN sluice.delivery.lookups IS 'Files and evidence of each lookup that was joined, and of each model that rows were scored with';

CREATE VIEW sluice.delivery_model AS
    SELECT d.pipeline, d.delivery_id, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live,
           m.name AS model, m.version, m.threshold, m.digest, m.made_at
    FROM sluice.delivery d
    CROSS JOIN LATERAL jsonb_each(d.lookups) AS used (name, files)
    JOIN sluice.model m ON m.pipeline = d.pipeline AND m.name = used.name AND m.digest = used.files->0->>'etag'
                       AND m.location = used.files->0->>'uri'
    WHERE d.kind <> 'release';
COMMENT ON VIEW sluice.delivery_model IS 'One row a delivered batch and model: which version scored it. Rows released from quarantine keep the scores of the batch they came in';
COMMENT ON COLUMN sluice.delivery_model.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.delivery_model.delivery_id IS 'The delivery';
COMMENT ON COLUMN sluice.delivery_model.batch_id IS 'Spark''s batch id within the stream';
COMMENT ON COLUMN sluice.delivery_model.kind IS 'stream or replay; see sluice.delivery.kind';
COMMENT ON COLUMN sluice.delivery_model.commit_seq IS 'Order of the pipeline''s commits';
COMMENT ON COLUMN sluice.delivery_model.committed_at IS 'When the batch was delivered';
COMMENT ON COLUMN sluice.delivery_model.live IS 'False once a later delivery took the batch''s place';
COMMENT ON COLUMN sluice.delivery_model.model IS 'As the pipeline''s declaration calls it';
COMMENT ON COLUMN sluice.delivery_model.version IS 'The version that was in force when the batch began';
COMMENT ON COLUMN sluice.delivery_model.threshold IS 'Its score above which a row counts as an anomaly';
COMMENT ON COLUMN sluice.delivery_model.digest IS 'SHA-256 of its bytes';
COMMENT ON COLUMN sluice.delivery_model.made_at IS 'When it was trained';
