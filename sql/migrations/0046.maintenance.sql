-- The last audit and the last sweep of each pipeline that came to their end: whoever looks at alerts knows what is wrong, or over.

CREATE TABLE sluice.maintenance (
    pipeline        text NOT NULL REFERENCES sluice.pipeline (name) DEFERRABLE,
    command         text NOT NULL CHECK (command IN ('audit', 'sweep')),
    differences     bigint NOT NULL,
    ended_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, command)
);
COMMENT ON TABLE sluice.maintenance IS 'The last audit and the last sweep of each pipeline, whoever started them; those that ended with an error left none';
COMMENT ON COLUMN sluice.maintenance.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.maintenance.command IS 'audit or sweep';
COMMENT ON COLUMN sluice.maintenance.differences IS 'How many the audit found; 0 of a sweep';
COMMENT ON COLUMN sluice.maintenance.ended_at IS 'When';
