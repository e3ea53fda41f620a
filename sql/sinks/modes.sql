-- name: merge_upsert
-- Adds or updates by key, only by newer rows; among equally new ones the later delivery wins, within one any of them.
INSERT INTO {target} AS t ({columns}, _stream_id, _batch_id, _delivery_id)
SELECT DISTINCT ON ({keys}) {columns}, %(stream)s::uuid, %(batch)s::bigint, %(delivery)s::bigint
FROM sluice_stage.{staging} WHERE _task = ANY(%(tasks)s)
ORDER BY {keys}, {newest} DESC NULLS LAST
ON CONFLICT ({keys}) DO UPDATE SET {assignments}
WHERE t.{newest} IS NULL OR t.{newest} <= excluded.{newest}

-- name: count_unmerged
-- Counts the staged rows of whose keys the table has neither a row of this delivery nor a newer one. Each looks up its key in
-- the index, however large the table is: what it has just merged is in memory.
SELECT count(*) FROM sluice_stage.{staging} s WHERE s._task = ANY(%(tasks)s) AND NOT coalesce((
    SELECT t._delivery_id = %(delivery)s OR (t.{newest} IS NOT NULL AND (s.{newest} IS NULL OR t.{newest} > s.{newest}))
    FROM {target} t WHERE {same_key}), false)

-- name: delete_all
-- Empties the table of a replace sink, seen by readers only with the new rows.
DELETE FROM {target}
