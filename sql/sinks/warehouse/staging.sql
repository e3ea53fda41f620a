-- name: make_packed_table
-- Makes an attempt's staging table of packed rows where it is missing, and makes none of an attempt that is closed: the row's
-- lock lets no two make it at once, nor one while the attempt is being closed. PostgreSQL does not try to compress the rows
-- once more. The table is unlogged, for it lives only until the commit, and not vacuumed, for a vacuum would hold it when it is
-- to be dropped.
DO $do$ BEGIN
    PERFORM FROM sluice.attempt
    WHERE delivery_id = %(delivery)s AND lease_token = %(run)s AND closed_at IS NULL FOR NO KEY UPDATE;
    IF FOUND THEN
        CREATE UNLOGGED TABLE IF NOT EXISTS sluice_stage.{staging}
            (held boolean NOT NULL, rows bigint NOT NULL, size bigint NOT NULL, packed bytea STORAGE EXTERNAL NOT NULL,
             part bigint NOT NULL, _task bigint NOT NULL)
            WITH (autovacuum_enabled = false);
    END IF;
END $do$
