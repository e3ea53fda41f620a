-- name: current
-- The version of a model that is in force: none before it was trained.
SELECT version, location, bytes, digest, threshold, metadata_location, report, made_at
FROM sluice.model WHERE pipeline = %(pipeline)s AND name = %(name)s ORDER BY version DESC LIMIT 1

-- name: add
-- A new version, whose objects are on the lake; a unique violation where another was made meanwhile.
INSERT INTO sluice.model (pipeline, name, version, location, bytes, digest, threshold, trained_on, metadata_location,
                          deliveries, rows_there, rows_fitted, report, made_by)
VALUES (%(pipeline)s, %(model)s, %(version)s, %(location)s, %(bytes)s, %(digest)s, %(threshold)s, %(trained_on)s,
        %(metadata_location)s, %(deliveries)s, %(rows_there)s, %(rows_fitted)s, %(report)s, %(made_by)s)
