-- name: wait_for_locks
-- How long what follows in the transaction waits for a lock.
SELECT set_config('lock_timeout', %(patience)s, true)

-- name: set_limits
-- How long what follows in the transaction may take; one of 0 is none, and one that was none starts to count anew.
SELECT set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true),
       set_config('transaction_timeout', %(transaction)s, true)

-- name: is_up_to_date
-- Whether all of these migrations are applied; fails where none ever was.
SELECT count(*) = %(count)s AND to_regnamespace('sluice_stage') IS NOT NULL
FROM sluice._yoyo_migration WHERE migration_id = ANY(%(migrations)s)
