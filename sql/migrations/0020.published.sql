-- Names under which readers see a pipeline's table, and which one transaction gives to another pipeline's.

CREATE TABLE sluice.published (
    schema_name     text NOT NULL,
    name            text NOT NULL,
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name),
    published_by    text NOT NULL,
    published_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (schema_name, name)
);
COMMENT ON TABLE sluice.published IS 'Names that are a view in PostgreSQL and a table of the catalog, of the same rows';
COMMENT ON COLUMN sluice.published.schema_name IS 'Schema of the view, and namespace in the catalog';
COMMENT ON COLUMN sluice.published.name IS 'Name of both';
COMMENT ON COLUMN sluice.published.pipeline IS 'The pipeline whose rows are seen; every commit of it moves the catalog''s name along';
COMMENT ON COLUMN sluice.published.published_by IS 'Who published it last';
COMMENT ON COLUMN sluice.published.published_at IS 'When';
