-- name: names_of
-- The names under which a pipeline's rows are seen.
SELECT schema_name, name FROM sluice.published WHERE pipeline = %(pipeline)s ORDER BY 1, 2

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
