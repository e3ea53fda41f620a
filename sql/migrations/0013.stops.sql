-- Stopped batches of streams that are no longer current, which no run can have again.

DELETE FROM sluice.stopped_batch s USING sluice.pipeline p
WHERE p.name = s.pipeline AND s.stream_id IS DISTINCT FROM p.current_stream;
