-- name: wait_for_locks
-- How long what follows in the transaction waits for a lock.
SELECT set_config('lock_timeout', %(patience)s, true)

-- name: set_limits
-- How long what follows in the transaction may take; one of 0 is none, and one that was none starts to count anew.
SELECT set_config('lock_timeout', %(lock)s, true), set_config('statement_timeout', %(statement)s, true),
       set_config('transaction_timeout', %(transaction)s, true)

-- name: set_idle_limit
-- How long what follows in the transaction may take between two statements.
SELECT set_config('idle_in_transaction_session_timeout', %(idle)s, true)
