-- name: emptied
-- Whether a table holds no row at all, though deliveries in force have brought it some.
SELECT NOT EXISTS (SELECT FROM {target}) AND EXISTS (
    SELECT FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live AND delivered > 0)

-- name: after_dropped
-- Columns that came into a table after one was dropped from it, as the same one that is put back does. PostgreSQL's
-- statistics spare those that have values by them; a column that is put back has none.
SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE a.attrelid = to_regclass(%(target)s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attnum > (
    SELECT min(d.attnum) FROM pg_attribute d WHERE d.attrelid = a.attrelid AND d.attnum > 0 AND d.attisdropped)
AND NOT EXISTS (
    SELECT FROM pg_stats s WHERE s.schemaname = c.relnamespace::regnamespace::text AND s.tablename = c.relname
    AND s.attname = a.attname AND s.null_frac < 1)

-- name: without_value
-- Whether no row of a table has a value in a column.
SELECT NOT EXISTS (SELECT FROM {target} WHERE {column} IS NOT NULL)
