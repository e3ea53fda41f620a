-- name: newest
-- The newest deliveries of a pipeline by the order of their commits, whatever took their places since, the last one first.
SELECT d.delivery_id, d.commit_seq, d.kind, d.stream_id::text, d.batch_id, d.records, d.rows_in, d.delivered, d.quarantined,
       (SELECT count(*) FROM sluice.quarantine q WHERE q.delivery_id = d.delivery_id AND q.status = 'held') AS held,
       d.committed_at, d.superseded_by, n.kind AS superseded_kind, d.released_from,
       ARRAY(SELECT s.delivery_id FROM sluice.delivery s WHERE s.superseded_by = d.delivery_id ORDER BY s.commit_seq) AS replaced
FROM sluice.delivery d LEFT JOIN sluice.delivery n ON n.delivery_id = d.superseded_by
WHERE d.pipeline = %(pipeline)s ORDER BY d.commit_seq DESC LIMIT %(last)s

-- name: how_many
-- How many deliveries a pipeline has, whatever took their places since.
SELECT count(*) FROM sluice.delivery WHERE pipeline = %(pipeline)s
