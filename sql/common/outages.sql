-- name: read_only_by
-- Where the setting comes from that keeps this session from writing, and its quoted role and database; no row on a standby.
SELECT source, quote_ident(session_user), quote_ident(current_database()) FROM pg_settings
WHERE name = 'default_transaction_read_only' AND setting = 'on' AND NOT pg_is_in_recovery()
