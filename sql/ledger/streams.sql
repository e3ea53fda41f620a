-- name: register_stream
-- Makes a stream known and the pipeline's current one; changes no row of the pipeline where its lease is another's.
WITH known AS (
    INSERT INTO sluice.stream (stream_id, pipeline, checkpoint, first_batch, state)
    VALUES (%(stream)s, %(pipeline)s, %(checkpoint)s, %(first_batch)s, %(state)s)
    ON CONFLICT (stream_id) DO NOTHING
)
UPDATE sluice.pipeline SET current_stream = %(stream)s WHERE name = %(pipeline)s AND lease_token = %(run)s

-- name: know_stream
-- Makes a stream known that is not the pipeline's current one: not any more, or not yet.
INSERT INTO sluice.stream (stream_id, pipeline, checkpoint, first_batch, state)
VALUES (%(stream)s, %(pipeline)s, %(checkpoint)s, %(first_batch)s, %(state)s) ON CONFLICT (stream_id) DO NOTHING

-- name: note_topics
-- Notes the ids of topics that the stream looks at for the first time, and returns those of all.
UPDATE sluice.stream SET topics = %(topics)s::jsonb || topics WHERE stream_id = %(stream)s RETURNING topics

-- name: stream_row
-- A stream, with the last batch that was delivered (null: none yet), whatever took its place since.
SELECT s.stream_id::text, s.pipeline, s.checkpoint, s.first_batch, s.state,
       (SELECT max(d.batch_id) FROM sluice.delivery d WHERE d.stream_id = s.stream_id) AS last_batch
FROM sluice.stream s WHERE s.stream_id = %(stream)s

-- name: known_streams
-- Which of these streams are there.
SELECT stream_id::text FROM sluice.stream WHERE stream_id = ANY(%(streams)s::uuid[])
