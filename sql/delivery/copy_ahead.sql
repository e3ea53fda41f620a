-- name: others_waiting
-- Sessions that wait for a lock that this one holds.
SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))

-- name: next_parts
-- The next parts of packed rows that are to be delivered, behind the last one that was copied of each task.
SELECT s._task, s.part, s.rows, s.size, s.packed FROM sluice_stage.{staging} s
LEFT JOIN unnest(%(tasks)s::bigint[], %(parts)s::bigint[]) copied (task, part) ON copied.task = s._task
WHERE NOT s.held AND (copied.task IS NULL OR s.part > copied.part) ORDER BY s._task, s.part LIMIT 8
