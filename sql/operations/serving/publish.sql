-- name: keep_others_out
-- One at a time gives names; commits, which only read them, go on.
LOCK TABLE sluice.published IN SHARE ROW EXCLUSIVE MODE

-- name: pipeline_of
-- Whose rows are seen under a name.
SELECT pipeline FROM sluice.published WHERE (schema_name, name) = (%(schema)s, %(name)s)

-- name: taken
-- What has the name already and is nobody's to give: a relation of PostgreSQL, a table of the catalog or of a pipeline.
SELECT CASE c.relkind WHEN 'v' THEN 'a view' WHEN 'm' THEN 'a materialized view' ELSE 'a table' END || ' of PostgreSQL'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) = (%(schema)s, %(name)s)
UNION ALL
SELECT 'a table of the catalog' FROM sluice.iceberg_tables
WHERE catalog_name = %(catalog)s AND (table_namespace, table_name) = (%(schema)s, %(name)s)
UNION ALL
SELECT 'the table of pipeline ' || p.name FROM sluice.pipeline p WHERE (p.table_schema, p.table_name) = (%(schema)s, %(name)s)

-- name: unread
-- How many files and partitions of Kafka one pipeline has in force that another has not read, or not all of what it read; of
-- how many; one of them; and whether the two have any in common.
WITH had AS (
    SELECT path, path AS told, NULL::text AS topic_id, NULL::integer AS partition, NULL::bigint AS first, NULL::bigint AS last,
           NULL::numeric AS records
    FROM sluice.delivery_input WHERE pipeline = %(before)s AND live
    UNION ALL
    SELECT NULL, format('kafka://%%s/%%s/%%s-%%s', min(topic), partition, min(start_offset), max(end_offset)), topic_id, partition,
           min(start_offset), max(end_offset), sum(end_offset - start_offset)
    FROM sluice.delivery_range WHERE pipeline = %(before)s AND live GROUP BY topic_id, partition
    HAVING sum(end_offset - start_offset) > 0
), compared AS (
    SELECT had.told, i.path IS NOT NULL OR range.records IS NOT NULL AS common,
           i.path IS NOT NULL OR coalesce(range.records >= had.records, false) AS done
    FROM had LEFT JOIN sluice.delivery_input i ON i.pipeline = %(pipeline)s AND i.path = had.path AND i.live
    LEFT JOIN LATERAL (
        SELECT sum(greatest(0, least(r.end_offset, had.last) - greatest(r.start_offset, had.first))) AS records
        FROM sluice.delivery_range r
        WHERE r.pipeline = %(pipeline)s AND r.live AND (r.topic_id, r.partition) = (had.topic_id, had.partition)) range ON true
)
SELECT count(*) FILTER (WHERE NOT done), count(*), min(told) FILTER (WHERE NOT done), coalesce(bool_or(common), false)
FROM compared

-- name: give
-- Gives the name to a pipeline.
INSERT INTO sluice.published (schema_name, name, pipeline, published_by)
VALUES (%(schema)s, %(name)s, %(pipeline)s, %(who)s)
ON CONFLICT (schema_name, name) DO UPDATE
SET pipeline = excluded.pipeline, published_by = excluded.published_by, published_at = now()

-- name: give_pointer
-- Points the catalog's name to where a pipeline's table is.
INSERT INTO sluice.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
VALUES (%(catalog)s, %(schema)s, %(name)s, %(location)s, 'TABLE')
ON CONFLICT (catalog_name, table_namespace, table_name) DO UPDATE
SET previous_metadata_location = iceberg_tables.metadata_location, metadata_location = excluded.metadata_location

-- name: take
-- Takes the name from whoever has it.
DELETE FROM sluice.published WHERE (schema_name, name) = (%(schema)s, %(name)s)

-- name: take_pointer
-- Takes the catalog's name away; no object is touched.
DELETE FROM sluice.iceberg_tables WHERE catalog_name = %(catalog)s AND (table_namespace, table_name) = (%(schema)s, %(name)s)
