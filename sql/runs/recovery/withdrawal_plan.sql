-- name: named
-- A delivery as it is on record, and what took its place.
SELECT d.kind, d.live, d.superseded_by, d.released_from, d.commit_seq, s.kind AS superseded_as
FROM sluice.delivery d LEFT JOIN sluice.delivery s ON s.delivery_id = d.superseded_by
WHERE d.pipeline = %(pipeline)s AND d.delivery_id = %(delivery)s

-- name: from_on
-- The live deliveries from a place in the order of commits on, without releases: these go with what had held their rows.
SELECT delivery_id, stream_id::text, batch_id, kind, rows_in, delivered, quarantined, suite_digest, committed_at
FROM sluice.delivery
WHERE pipeline = %(pipeline)s AND live AND kind <> 'release' AND commit_seq >= %(commit_seq)s ORDER BY commit_seq
