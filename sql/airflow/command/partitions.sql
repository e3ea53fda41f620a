-- name: partitions_of
-- The partitions of some deliveries' Parquet files, whatever took their place since, as their folders are called.
SELECT DISTINCT substring(path FROM '=([^/=]*)/stream=[^/]*/batch=[^/]*/[^/]*$')
FROM sluice.delivery_file WHERE delivery_id = ANY (%(deliveries)s) AND kind = 'data'
