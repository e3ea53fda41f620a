-- name: live
-- The live deliveries but those that are replaced.
SELECT delivery_id FROM sluice.delivery
WHERE pipeline = %(pipeline)s AND live AND NOT delivery_id = ANY(%(replaced)s)

-- name: files
-- The objects of delivered rows of these deliveries.
SELECT path FROM sluice.delivery_file WHERE delivery_id = ANY(%(deliveries)s) AND kind = 'data' ORDER BY path

-- name: deliveries
-- The deliveries of these objects.
SELECT DISTINCT f.delivery_id FROM sluice.delivery_file f JOIN sluice.delivery d USING (delivery_id)
WHERE d.pipeline = %(pipeline)s AND f.path = ANY(%(paths)s)

-- name: asked
-- The keys that the change log is asked for, each value in a form that loses nothing.
COPY (SELECT {columns} FROM sluice_stage.{log} WHERE _task = {noted} LIMIT {most}) TO STDOUT WITH (FORMAT csv, ENCODING 'UTF8')
