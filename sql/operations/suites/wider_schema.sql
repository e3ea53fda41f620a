-- name: unknown_fields
-- The fields that a pipeline's last live deliveries which read records counted beyond the schema, the most frequent first,
-- with their records.
SELECT field.key, sum(field.value::bigint)::bigint AS records
FROM (SELECT d.unknown FROM sluice.delivery d WHERE d.pipeline = %(pipeline)s AND d.live AND d.kind IN ('stream', 'replay')
      ORDER BY d.commit_seq DESC LIMIT %(last)s) d, jsonb_each_text(d.unknown) AS field
GROUP BY field.key ORDER BY records DESC, field.key
