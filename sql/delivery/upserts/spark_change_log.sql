-- name: deliveries
-- The deliveries of these objects.
SELECT DISTINCT f.delivery_id FROM sluice.delivery_file f JOIN sluice.delivery d USING (delivery_id)
WHERE d.pipeline = %(pipeline)s AND f.path = ANY(%(paths)s)
