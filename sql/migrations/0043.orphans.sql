-- What the last sweep or audit of each pipeline saw on S3 that nothing refers to: a listing is too much for each look at metrics.

CREATE TABLE sluice.orphans (
    pipeline        text PRIMARY KEY REFERENCES sluice.pipeline (name) DEFERRABLE,
    objects         bigint NOT NULL,
    bytes           bigint NOT NULL,
    seen_by         text NOT NULL CHECK (seen_by IN ('audit', 'sweep')),
    seen_at         timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE sluice.orphans IS 'Objects of each pipeline that no retained metadata of its tables needs, as they were last counted';
COMMENT ON COLUMN sluice.orphans.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.orphans.objects IS 'How many there were: of a sweep, those that it left';
COMMENT ON COLUMN sluice.orphans.bytes IS 'Their size';
COMMENT ON COLUMN sluice.orphans.seen_by IS 'What counted them: audit or sweep';
COMMENT ON COLUMN sluice.orphans.seen_at IS 'When';
