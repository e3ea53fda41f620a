-- A pipeline delivers by replace from its first batch so; a try that delivered none left its mark before.

UPDATE sluice.pipeline p SET replaces = NULL
WHERE NOT replaces OR NOT EXISTS (SELECT FROM sluice.delivery d WHERE d.pipeline = p.name);
COMMENT ON COLUMN sluice.pipeline.replaces IS 'True since a batch took the place of all before it; null: none has';
