-- What the columns of each batch looked like, and how long reports and sketches are kept.

CREATE TABLE sluice.column_metric (
    delivery_id     bigint NOT NULL REFERENCES sluice.delivery (delivery_id),
    column_name     text NOT NULL,
    number          integer NOT NULL,
    rows_seen       bigint NOT NULL,
    null_count      bigint NOT NULL,
    nan_count       bigint NOT NULL,
    minimum         double precision,
    maximum         double precision,
    mean            double precision,
    deviation       double precision,
    earliest        timestamptz,
    latest          timestamptz,
    distinct_estimate double precision,
    p05             double precision,
    p50             double precision,
    p95             double precision,
    distinct_sketch bytea,
    quantile_sketch bytea,
    PRIMARY KEY (delivery_id, column_name)
);
COMMENT ON TABLE sluice.column_metric IS 'What a column that the pipeline names in `metrics` looked like in a batch: all rows of the transform''s output, held ones included';
COMMENT ON COLUMN sluice.column_metric.delivery_id IS 'The delivery';
COMMENT ON COLUMN sluice.column_metric.column_name IS 'The column of the transform''s output';
COMMENT ON COLUMN sluice.column_metric.number IS 'Its place in the declaration, from 0';
COMMENT ON COLUMN sluice.column_metric.rows_seen IS 'Rows of the transform''s output; malformed records never became rows';
COMMENT ON COLUMN sluice.column_metric.null_count IS 'Rows in which the column is null';
COMMENT ON COLUMN sluice.column_metric.nan_count IS 'Rows in which it is NaN';
COMMENT ON COLUMN sluice.column_metric.minimum IS 'Least number; null for columns that are no numbers';
COMMENT ON COLUMN sluice.column_metric.maximum IS 'Greatest number';
COMMENT ON COLUMN sluice.column_metric.mean IS 'Mean of the numbers';
COMMENT ON COLUMN sluice.column_metric.deviation IS 'Standard deviation of the numbers (of the population)';
COMMENT ON COLUMN sluice.column_metric.earliest IS 'Earliest moment; null for columns that are no moments or dates';
COMMENT ON COLUMN sluice.column_metric.latest IS 'Latest moment: committed_at of the delivery minus this is how old the newest row was';
COMMENT ON COLUMN sluice.column_metric.distinct_estimate IS 'About how many different values, within 1.6 % (one standard error)';
COMMENT ON COLUMN sluice.column_metric.p05 IS 'About the number below which 5 % of them lie';
COMMENT ON COLUMN sluice.column_metric.p50 IS 'About the median';
COMMENT ON COLUMN sluice.column_metric.p95 IS 'About the number below which 95 % of them lie';
COMMENT ON COLUMN sluice.column_metric.distinct_sketch IS 'Apache DataSketches'' HLL sketch (lg k = 12) of the values; sketches of several batches merge';
COMMENT ON COLUMN sluice.column_metric.quantile_sketch IS 'Apache DataSketches'' KLL sketch of doubles (k = 200) of the numbers; sketches of several batches merge';

CREATE VIEW sluice.column_history AS
    SELECT d.pipeline, m.column_name, d.delivery_id, d.batch_id, d.kind, d.commit_seq, d.committed_at, d.live,
           m.rows_seen, m.null_count, m.null_count::double precision / nullif(m.rows_seen, 0) AS null_share, m.nan_count,
           m.minimum, m.maximum, m.mean, m.deviation, m.p05, m.p50, m.p95, m.distinct_estimate,
           m.earliest, m.latest, d.committed_at - m.latest AS age
    FROM sluice.column_metric m JOIN sluice.delivery d USING (delivery_id);
COMMENT ON VIEW sluice.column_history IS 'One row a column and delivered batch: the trend of every column that a pipeline names in `metrics`';
COMMENT ON COLUMN sluice.column_history.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.column_history.column_name IS 'The column';
COMMENT ON COLUMN sluice.column_history.delivery_id IS 'The delivery';
COMMENT ON COLUMN sluice.column_history.batch_id IS 'Spark''s batch id within the stream';
COMMENT ON COLUMN sluice.column_history.kind IS 'stream, replay or release; see sluice.delivery.kind';
COMMENT ON COLUMN sluice.column_history.commit_seq IS 'Order of the pipeline''s commits';
COMMENT ON COLUMN sluice.column_history.committed_at IS 'When the batch was delivered';
COMMENT ON COLUMN sluice.column_history.live IS 'False once a later delivery took the batch''s place';
COMMENT ON COLUMN sluice.column_history.rows_seen IS 'Rows of the transform''s output, held ones included';
COMMENT ON COLUMN sluice.column_history.null_count IS 'Rows in which the column is null';
COMMENT ON COLUMN sluice.column_history.null_share IS 'null_count / rows_seen, from 0 to 1; null for a batch of no rows';
COMMENT ON COLUMN sluice.column_history.nan_count IS 'Rows in which it is NaN';
COMMENT ON COLUMN sluice.column_history.minimum IS 'Least number';
COMMENT ON COLUMN sluice.column_history.maximum IS 'Greatest number';
COMMENT ON COLUMN sluice.column_history.mean IS 'Mean of the numbers';
COMMENT ON COLUMN sluice.column_history.deviation IS 'Standard deviation of the numbers (of the population)';
COMMENT ON COLUMN sluice.column_history.p05 IS 'About the number below which 5 % of them lie';
COMMENT ON COLUMN sluice.column_history.p50 IS 'About the median';
COMMENT ON COLUMN sluice.column_history.p95 IS 'About the number below which 95 % of them lie';
COMMENT ON COLUMN sluice.column_history.distinct_estimate IS 'About how many different values';
COMMENT ON COLUMN sluice.column_history.earliest IS 'Earliest moment';
COMMENT ON COLUMN sluice.column_history.latest IS 'Latest moment';
COMMENT ON COLUMN sluice.column_history.age IS 'How old the newest row was when the batch was delivered';

-- `sluice sweep` takes reports and sketches out once they are older than SLUICE_QUALITY_RETENTION.
ALTER TABLE sluice.quality ALTER COLUMN report DROP NOT NULL;
COMMENT ON COLUMN sluice.quality.report IS 'The results as Great Expectations'' JSON; text because it may hold NaN; null once it is older than SLUICE_QUALITY_RETENTION';
