-- name: others_waiting
-- Sessions that wait for a lock that this one holds.
SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))
