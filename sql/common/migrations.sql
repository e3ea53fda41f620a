-- name: create_marks
-- The table of applied migrations, which yoyo has made in older databases.
CREATE TABLE IF NOT EXISTS sluice._yoyo_migration (
    migration_hash varchar(64) PRIMARY KEY, migration_id varchar(255), applied_at_utc timestamp
)

-- name: marked
-- The applied migrations.
SELECT migration_id FROM sluice._yoyo_migration

-- name: mark
-- One migration is applied, marked as yoyo did.
INSERT INTO sluice._yoyo_migration (migration_hash, migration_id, applied_at_utc)
VALUES (encode(sha256(convert_to(%(migration)s, 'UTF8')), 'hex'), %(migration)s, now() AT TIME ZONE 'UTC')

-- name: those_there
-- Which of these names in schema sluice are tables or views.
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = 'sluice'::regnamespace AND c.relkind IN ('r', 'v') AND c.relname = ANY(%(names)s)

-- name: lock_table
-- Keeps everybody else out of a table, or of a view and its tables, until the transaction ends.
LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE

-- name: is_up_to_date
-- Whether all of these migrations are applied; fails where none ever was.
SELECT count(*) = %(count)s AND to_regnamespace('sluice_stage') IS NOT NULL
FROM sluice._yoyo_migration WHERE migration_id = ANY(%(migrations)s)
