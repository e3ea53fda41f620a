-- name: create_row_staging
-- An attempt's staging table of delivered rows, as the table has them; unlogged, for it lives only until the commit, and not
-- vacuumed, for a vacuum would hold it when it is to be dropped.
CREATE UNLOGGED TABLE sluice_stage.{staging} ({columns}, _task bigint NOT NULL) WITH (autovacuum_enabled = false)

-- name: create_log_staging
-- An attempt's staging table of earlier changes, each with the delivery that brought it.
CREATE UNLOGGED TABLE sluice_stage.{staging} ({columns}, _delivery_id bigint NOT NULL, _task bigint NOT NULL)
    WITH (autovacuum_enabled = false)

-- name: restore_rows
-- Gives each key that the table has not the newest of its staged changes; of equally new ones the later commit wins.
-- Keys that it has are left out before anything is sorted.
INSERT INTO {target} ({columns}, _stream_id, _batch_id, _delivery_id)
SELECT DISTINCT ON ({staged_keys}) {staged_columns}, d.stream_id, d.batch_id, d.delivery_id
FROM sluice_stage.{staging} s JOIN sluice.delivery d ON d.delivery_id = s._delivery_id AND d.live
WHERE s._task = ANY(%(tasks)s) AND NOT EXISTS (SELECT FROM {target} t WHERE {same_key})
ORDER BY {staged_keys}, s.{newest} DESC NULLS LAST, d.commit_seq DESC

-- name: note_keys_to_restore
-- Notes the keys that lose their row to something that may be older than what the row covers, and all of which replaced rows
-- are staged here; the row count is how many were not noted before. A replay's own row that is at least as new wins over all
-- that is covered. A row without a version covers nothing for sure. A key that is not whole, as somebody set it by hand, has
-- no changes.
INSERT INTO sluice_stage.{log} ({keys}, _delivery_id, _task)
SELECT {keys}, 0, {marker} FROM (
    SELECT {keys} FROM {target} t WHERE t._delivery_id = ANY(%(replaced)s) AND NOT EXISTS (
        SELECT FROM sluice_stage.{staging} s WHERE s._task = ANY(%(tasks)s) AND {same_key} AND {covered})
    UNION
    SELECT {keys} FROM sluice_stage.{log} WHERE _delivery_id = ANY(%(replaced)s)
) t
WHERE {whole} AND NOT EXISTS (SELECT FROM sluice_stage.{log} s WHERE s._task = {marker} AND {same_key})

-- name: create_table
-- The pipeline's table.
CREATE TABLE IF NOT EXISTS {target}
    ({columns}, _stream_id uuid NOT NULL, _batch_id bigint NOT NULL, _delivery_id bigint NOT NULL)

-- name: add_column
-- A column that the pipeline's output has gained; null in all rows before.
ALTER TABLE {target} ADD COLUMN {column} {kind}

-- name: widen_column
-- A column that has become wider.
ALTER TABLE {target} ALTER COLUMN {column} TYPE {kind}

-- name: is_there
-- Whether a table or an index is there.
SELECT to_regclass(%(name)s) IS NOT NULL

-- name: create_delivery_index
-- Finds the rows of a delivery; a range index, since deliveries are appended in the order of their numbers.
CREATE INDEX IF NOT EXISTS {index} ON {target} USING brin (_delivery_id)

-- name: create_key_index
-- The key of an upsert sink.
CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {target} ({keys})

-- name: table_columns
-- The columns of a table and their types, in order.
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type
FROM pg_attribute a WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum

-- name: collations
-- The columns of a table that a collation of their own compares, and its name.
SELECT a.attname, n.nspname, c.collname
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid AND t.typcollation <> a.attcollation
JOIN pg_collation c ON c.oid = a.attcollation JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped
