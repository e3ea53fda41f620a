-- name: live
-- The live deliveries but those that are replaced.
SELECT delivery_id FROM sluice.delivery
WHERE pipeline = %(pipeline)s AND live AND NOT delivery_id = ANY(%(replaced)s)

-- name: files
-- The objects of delivered rows of these deliveries.
SELECT path FROM sluice.delivery_file WHERE delivery_id = ANY(%(deliveries)s) AND kind = 'data' ORDER BY path

-- name: keys_to_restore
-- The keys that the change log is asked for, each value in a form that loses nothing.
COPY (SELECT {columns} FROM sluice_stage.{log} WHERE _task = {marker} LIMIT {most}) TO STDOUT WITH (FORMAT csv, ENCODING 'UTF8')
