-- name: files
-- The objects of rows that these deliveries brought, whatever took their places since.
SELECT delivery_id, path FROM sluice.delivery_file WHERE delivery_id = ANY(%(deliveries)s) AND kind = 'data'
ORDER BY delivery_id, path
