-- Which fields the columns of a delivery are made of, for its OpenLineage event.

ALTER TABLE sluice.lineage_event ADD COLUMN made_of jsonb;
COMMENT ON COLUMN sluice.lineage_event.made_of IS 'What the plan of its transform says of its columns: the fields that each is made of, those that decide on its rows, and the stream of each source and topic; null: not noted';
