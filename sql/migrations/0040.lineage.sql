-- What OpenLineage is told of: one row a delivery, written by its commit where that is switched on.

CREATE TABLE sluice.lineage_event (
    delivery_id     bigint PRIMARY KEY REFERENCES sluice.delivery (delivery_id),
    columns         jsonb,
    sources         text[],
    parent          text,
    sent_at         timestamptz
);
CREATE INDEX lineage_unsent ON sluice.lineage_event (delivery_id) WHERE sent_at IS NULL;
COMMENT ON TABLE sluice.lineage_event IS 'Deliveries that an OpenLineage event is sent for, with what no other row of the ledger says of them';
COMMENT ON COLUMN sluice.lineage_event.delivery_id IS 'The delivery';
COMMENT ON COLUMN sluice.lineage_event.columns IS 'The columns of its rows in their order, each with name and type; null: it was committed while no events were sent';
COMMENT ON COLUMN sluice.lineage_event.sources IS 'The folder of each of the pipeline''s sources, in their order; null: it reads no files';
COMMENT ON COLUMN sluice.lineage_event.parent IS 'The run that asked for it, as OPENLINEAGE_PARENT_ID named it: namespace/job/run';
COMMENT ON COLUMN sluice.lineage_event.sent_at IS 'When its event was last taken by the receiver; null: not yet';
