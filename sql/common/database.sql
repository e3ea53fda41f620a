-- name: one_snapshot
-- Everything that follows in the transaction is read as of one moment, however long it takes.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- name: wait_for_locks
-- How long what follows in the transaction waits for a lock.
SELECT set_config('lock_timeout', %(patience)s, true)

-- name: is_up_to_date
-- Whether all of these migrations are applied; fails where none ever was.
SELECT count(*) = %(count)s AND to_regnamespace('sluice_stage') IS NOT NULL
FROM sluice._yoyo_migration WHERE migration_id = ANY(%(migrations)s)
