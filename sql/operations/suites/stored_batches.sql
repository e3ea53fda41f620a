-- name: batches
-- The newest live batches of a pipeline in the order of their commits, each with its Parquet files. Rows that were
-- let out of quarantine are in the files of the batch that held them.
SELECT d.delivery_id, d.stream_id::text, d.batch_id, d.kind, d.committed_at, d.suite_digest, d.malformed, d.records,
       coalesce(f.data, ARRAY[]::text[]) AS data, coalesce(f.quarantine, ARRAY[]::text[]) AS quarantine
FROM (SELECT * FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live AND kind IN ('stream', 'replay')
      ORDER BY commit_seq DESC LIMIT %(last)s) d,
     LATERAL (SELECT array_agg(path ORDER BY path) FILTER (WHERE kind = 'data') AS data,
                     array_agg(path ORDER BY path) FILTER (WHERE kind = 'quarantine') AS quarantine
              FROM sluice.delivery_file WHERE delivery_id = d.delivery_id) f
ORDER BY d.commit_seq

-- name: releases_since
-- How many live releases from quarantine were delivered after a delivery.
SELECT count(*) FROM sluice.delivery d
WHERE d.pipeline = %(pipeline)s AND d.live AND d.kind = 'release'
  AND d.commit_seq > (SELECT o.commit_seq FROM sluice.delivery o WHERE o.delivery_id = %(delivery)s)

-- name: rules
-- What the suite said of a delivery when it was judged, rule by rule.
SELECT number, reason, coalesce(rule_id, reason) AS known_by, expectation, severity, success, element_count, unexpected_count
FROM sluice.quality_rule WHERE delivery_id = %(delivery)s ORDER BY number

-- name: report
-- The whole report on a delivery.
SELECT report FROM sluice.quality WHERE delivery_id = %(delivery)s AND report IS NOT NULL
