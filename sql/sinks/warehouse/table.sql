-- name: create_staging
-- An attempt's staging table of delivered rows; unlogged, for it lives only until the commit, and not vacuumed,
-- for a vacuum would hold it when it is to be dropped.
CREATE UNLOGGED TABLE sluice_stage.{staging} ({columns}, _task bigint NOT NULL) WITH (autovacuum_enabled = false)

-- name: create_quarantine_staging
-- An attempt's staging table of held rows.
CREATE UNLOGGED TABLE sluice_stage.{staging}
    (reasons text[] NOT NULL, source_path text, raw text, row text, detail text, _task bigint NOT NULL)
    WITH (autovacuum_enabled = false)

-- name: create_log_staging
-- An attempt's staging table of earlier changes, each with the delivery that brought it.
CREATE UNLOGGED TABLE sluice_stage.{staging} ({columns}, _delivery_id bigint NOT NULL, _task bigint NOT NULL)
    WITH (autovacuum_enabled = false)

-- name: drop_staging
-- Removes a staging table.
DROP TABLE IF EXISTS sluice_stage.{staging}

-- name: lock_staging
-- Makes sure that nobody writes to a staging table; fails at once when somebody does.
LOCK TABLE sluice_stage.{staging} IN ACCESS EXCLUSIVE MODE NOWAIT

-- name: staging_left
-- The staging tables of a pipeline's attempts that are closed, which can't commit any more.
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN sluice.attempt a ON a.delivery_id = substring(c.relname FROM '^d(\d{{1,18}})_')::bigint
WHERE n.nspname = 'sluice_stage' AND c.relkind = 'r' AND a.pipeline = %(pipeline)s AND a.closed_at IS NOT NULL
  AND regexp_replace(c.relname, '_(quarantine|log)$', '')
      = format('d%%s_%%s', a.delivery_id, left(a.lease_token::text, 8))
ORDER BY c.relname

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

-- name: merge_quarantine
-- Holds the winning tasks' bad rows; the row count is the number held.
INSERT INTO sluice.quarantine (pipeline, delivery_id, stream_id, batch_id, reasons, source_path, raw, row, detail)
SELECT %(pipeline)s, %(delivery)s, %(stream)s::uuid, %(batch)s, reasons, source_path, raw, row, detail
FROM sluice_stage.{staging} WHERE _task = ANY(%(tasks)s)

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

-- name: obstacles
-- What could make a merge fail, or change or lose its rows: triggers, constraints that are not ours, no log.
SELECT 'trigger ' || tgname AS obstacle FROM pg_trigger
WHERE tgrelid = to_regclass(%(table)s) AND NOT tgisinternal
UNION ALL
SELECT CASE contype WHEN 'c' THEN 'CHECK' WHEN 'f' THEN 'FOREIGN KEY' WHEN 'x' THEN 'EXCLUDE' ELSE 'UNIQUE' END
       || ' constraint ' || conname
FROM pg_constraint WHERE conrelid = to_regclass(%(table)s) AND contype IN ('c', 'f', 'u', 'p', 'x')
UNION ALL
SELECT 'UNIQUE index ' || i.indexrelid::regclass::text
FROM pg_index i WHERE i.indrelid = to_regclass(%(table)s) AND i.indisunique
  AND NOT (coalesce(i.indexrelid = to_regclass(%(key_index)s), false) AND %(keys)s = ARRAY(
      SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indexrelid ORDER BY a.attnum))
  AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)
UNION ALL
SELECT 'NOT NULL on column ' || attname FROM pg_attribute
WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped AND attnotnull
  AND attname NOT IN ('_stream_id', '_batch_id', '_delivery_id')
UNION ALL
SELECT 'a value of its own for column ' || attname FROM pg_attribute
WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped AND (attgenerated <> '' OR attidentity <> '')
UNION ALL
SELECT 'a collation to which different texts of key ' || a.attname || ' are the same' FROM pg_attribute a
JOIN pg_collation c ON c.oid = a.attcollation AND NOT c.collisdeterministic
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY(%(keys)s)
UNION ALL
SELECT 'a collation of column ' || a.attname || ' in a schema that this role may not use' FROM pg_attribute a
JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = to_regclass(%(table)s) AND a.attnum > 0 AND NOT a.attisdropped AND %(keys)s <> ARRAY[]::text[]
  AND NOT has_schema_privilege(c.collnamespace, 'USAGE')
UNION ALL
SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = to_regclass(%(table)s)
UNION ALL
SELECT 'row level security' FROM pg_class WHERE oid = to_regclass(%(table)s) AND relrowsecurity
UNION ALL
SELECT 'no write-ahead log (' || oid::regclass || ' is UNLOGGED): PostgreSQL empties it when it crashes' FROM pg_class
WHERE relpersistence = 'u'
  AND (oid = to_regclass(%(table)s) OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass(%(table)s))))
UNION ALL
SELECT 'another kind than an ordinary or partitioned table' FROM pg_class
WHERE oid = to_regclass(%(table)s) AND relkind NOT IN ('r', 'p')
