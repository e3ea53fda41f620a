-- name: keep_others_out
-- One at a time gives names; commits, which only read them, go on.
LOCK TABLE sluice.published IN SHARE ROW EXCLUSIVE MODE

-- name: pipeline_of
-- Whose rows are seen under a name.
SELECT pipeline FROM sluice.published WHERE (schema_name, name) = (%(schema)s, %(name)s)

-- name: names_of
-- The names under which a pipeline's rows are seen.
SELECT schema_name, name FROM sluice.published WHERE pipeline = %(pipeline)s ORDER BY 1, 2

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

-- name: columns
-- A table's own columns, in its order: what it gained later is last.
SELECT a.attname FROM pg_attribute a
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped AND NOT a.attname = ANY(%(system)s)
ORDER BY a.attnum

-- name: create_view
-- Shows a table's own columns under another name.
CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM {target}

-- name: drop_view
-- Removes a view.
DROP VIEW IF EXISTS {view}

-- name: relation_kind
-- What has a view's name.
SELECT relkind FROM pg_class WHERE oid = to_regclass(%(view)s)

-- name: lock
-- A statement that waits for all who read the view and changes nothing.
SELECT format('ALTER VIEW %%s OWNER TO %%I', %(view)s, pg_get_userbyid(relowner)) FROM pg_class WHERE oid = to_regclass(%(view)s)

-- name: given
-- What people gave a view or its columns, as statements that give it again, its owner first, and whether CREATE OR REPLACE
-- takes it away; no row: there is no view.
WITH one AS (
    SELECT oid, relowner, relacl, reloptions FROM pg_class WHERE oid = to_regclass(%(view)s)
), columns AS (
    SELECT a.attname, a.attnum, a.attacl FROM one JOIN pg_attribute a ON a.attrelid = one.oid WHERE a.attnum > 0
), granted AS (
    SELECT NULL AS attname, '' AS part, g.* FROM one, aclexplode(one.relacl) g
    UNION ALL
    SELECT c.attname, format(' (%%I)', c.attname), g.* FROM columns c, aclexplode(c.attacl) g
), again AS (
    SELECT 1 AS turn, g.attname, format('GRANT %%s%%s ON %%s TO %%s%%s', g.privilege_type, g.part, %(view)s,
        coalesce(quote_ident(r.rolname), 'PUBLIC'), CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' END) AS text,
        false AS reset
    FROM one, granted g LEFT JOIN pg_roles r ON r.oid = g.grantee WHERE g.grantee <> one.relowner
    UNION ALL
    SELECT 1, c.attname, format('COMMENT ON COLUMN %%s.%%I IS %%L', %(view)s, c.attname, col_description(one.oid, c.attnum)), false
    FROM one, columns c WHERE col_description(one.oid, c.attnum) IS NOT NULL
    UNION ALL
    SELECT 1, NULL, format('COMMENT ON VIEW %%s IS %%L', %(view)s, obj_description(one.oid, 'pg_class')), false
    FROM one WHERE obj_description(one.oid, 'pg_class') IS NOT NULL
    UNION ALL
    SELECT 1, NULL, format('ALTER VIEW %%s SET (%%I = %%L)', %(view)s, o.option_name, o.option_value), true
    FROM one, pg_options_to_table(one.reloptions) o
    UNION ALL
    SELECT 0, NULL, format('ALTER VIEW %%s OWNER TO %%I', %(view)s, pg_get_userbyid(one.relowner)), false FROM one
)
SELECT attname, text, reset FROM again ORDER BY turn

-- name: revoke_defaults
-- Takes from a new view what default privileges gave others than its owner, as statements.
SELECT DISTINCT format('REVOKE ALL ON %%s FROM %%s', %(view)s, coalesce(quote_ident(r.rolname), 'PUBLIC'))
FROM pg_class c, aclexplode(c.relacl) g LEFT JOIN pg_roles r ON r.oid = g.grantee
WHERE c.oid = to_regclass(%(view)s) AND g.grantee <> c.relowner
