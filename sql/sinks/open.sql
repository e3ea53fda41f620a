-- name: emptied
-- Whether a table holds no row at all, though deliveries in force have brought it some.
SELECT NOT EXISTS (SELECT FROM {target}) AND EXISTS (
    SELECT FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live AND delivered > 0)
