-- name: live
-- The live deliveries but those that are replaced.
SELECT delivery_id FROM sluice.delivery
WHERE pipeline = %(pipeline)s AND live AND NOT delivery_id = ANY(%(replaced)s)

-- name: files
-- The objects of delivered rows of these deliveries.
SELECT path FROM sluice.delivery_file WHERE delivery_id = ANY(%(deliveries)s) AND kind = 'data' ORDER BY path

-- name: origins
-- The deliveries of these objects, and these others, each with whether it is a release; then what had held its rows is too.
WITH RECURSIVE found AS (
    SELECT d.delivery_id, d.released_from FROM sluice.delivery d
    WHERE d.pipeline = %(pipeline)s AND (d.delivery_id = ANY(%(replaced)s) OR EXISTS (
        SELECT FROM sluice.delivery_file f WHERE f.delivery_id = d.delivery_id AND f.path = ANY(%(paths)s)))
    UNION
    SELECT d.delivery_id, d.released_from FROM sluice.delivery d JOIN found f ON d.delivery_id = f.released_from
)
SELECT delivery_id, released_from IS NOT NULL FROM found

-- name: asked
-- The keys that the change log is asked for, each value in a form that loses nothing.
COPY (SELECT {columns} FROM sluice_stage.{log} WHERE _task = {noted} LIMIT {most}) TO STDOUT WITH (FORMAT csv, ENCODING 'UTF8')
