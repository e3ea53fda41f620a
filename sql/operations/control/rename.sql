-- name: on_record
-- What a pipeline has on record, in figures.
SELECT (SELECT count(*) FROM sluice.delivery d WHERE d.pipeline = %(pipeline)s) AS deliveries,
       (SELECT count(*) FROM sluice.quarantine q WHERE q.pipeline = %(pipeline)s AND q.status = 'held') AS held,
       (SELECT coalesce(array_agg(c.name ORDER BY c.name), ARRAY[]::text[]) FROM sluice.consumer c
        WHERE c.pipeline = %(pipeline)s) AS consumers
