-- A pipeline can be given another name: all that is on record of it goes along in one transaction, which the ledger's
-- references have to allow.

CREATE TABLE sluice.renamed (
    was             text NOT NULL,
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name) DEFERRABLE,
    renamed_at      timestamptz NOT NULL DEFAULT now(),
    renamed_by      text NOT NULL,
    PRIMARY KEY (was, renamed_at)
);
COMMENT ON TABLE sluice.renamed IS 'The names that pipelines had: no other pipeline is given one, and a pipeline''s checkpoints are in the folder of its first';
COMMENT ON COLUMN sluice.renamed.was IS 'The name that it had';
COMMENT ON COLUMN sluice.renamed.pipeline IS 'The pipeline, by its name now';
COMMENT ON COLUMN sluice.renamed.renamed_at IS 'When it was given the next one';
COMMENT ON COLUMN sluice.renamed.renamed_by IS 'Who gave it';

ALTER TABLE sluice.stream ALTER CONSTRAINT stream_pipeline_fkey DEFERRABLE;
ALTER TABLE sluice.run ALTER CONSTRAINT run_pipeline_fkey DEFERRABLE;
ALTER TABLE sluice.attempt ALTER CONSTRAINT attempt_pipeline_fkey DEFERRABLE;
ALTER TABLE sluice.delivery ALTER CONSTRAINT delivery_pipeline_fkey DEFERRABLE;
ALTER TABLE sluice.stopped_batch ALTER CONSTRAINT stopped_batch_pipeline_fkey DEFERRABLE;
ALTER TABLE sluice.accepted_gap ALTER CONSTRAINT accepted_gap_pipeline_fkey DEFERRABLE;
ALTER TABLE sluice.published ALTER CONSTRAINT published_pipeline_fkey DEFERRABLE;
ALTER TABLE sluice.compared ALTER CONSTRAINT compared_pipeline_fkey DEFERRABLE;
ALTER TABLE sluice.consumer ALTER CONSTRAINT consumer_pipeline_fkey DEFERRABLE;
