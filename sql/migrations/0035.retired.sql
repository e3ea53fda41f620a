-- A pipeline that will not run again leaves the pages, with who said so and why; its next run takes it up again.

ALTER TABLE sluice.pipeline ADD COLUMN retired_at timestamptz, ADD COLUMN retired_by text, ADD COLUMN retired_why text;
COMMENT ON COLUMN sluice.pipeline.retired_at IS 'When somebody said that it will not run again; null: nobody has since its last run began';
COMMENT ON COLUMN sluice.pipeline.retired_by IS 'Who said so';
COMMENT ON COLUMN sluice.pipeline.retired_why IS 'And why';

CREATE OR REPLACE VIEW sluice.quality_pipeline AS
    SELECT p.name AS pipeline, last.delivery_id, last.batch_id, last.committed_at, last.state,
           turn.committed_at AS state_since, stop.batch_id IS NOT NULL AS stopped,
           CASE WHEN stop.batch_id IS NOT NULL AND stop.decision IS NULL THEN 'stopped'
                WHEN trouble.since IS NULL THEN coalesce(last.state, 'new')
                WHEN trouble.lasts OR trouble.since < now() - interval '3 hours' THEN 'failing'
                ELSE 'interrupted' END AS standing,
           trouble.since AS failing_since, p.retired_at
    FROM sluice.pipeline p
    LEFT JOIN LATERAL (
        SELECT d.delivery_id, d.batch_id, d.commit_seq, d.committed_at, q.state, q.good
        FROM sluice.delivery d JOIN sluice.quality q USING (delivery_id)
        WHERE d.pipeline = p.name AND d.live AND d.kind <> 'release' ORDER BY d.commit_seq DESC LIMIT 1) last ON true
    LEFT JOIN LATERAL (
        SELECT q.commit_seq FROM sluice.quality q JOIN sluice.delivery d USING (delivery_id)
        WHERE q.pipeline = p.name AND q.good = (NOT last.good) AND d.live AND d.kind <> 'release'
        ORDER BY q.commit_seq DESC LIMIT 1) other ON true
    LEFT JOIN LATERAL (
        SELECT d.committed_at FROM sluice.quality q JOIN sluice.delivery d USING (delivery_id)
        WHERE q.pipeline = p.name AND q.good = last.good AND d.live AND d.kind <> 'release'
          AND q.commit_seq > coalesce(other.commit_seq, 0) ORDER BY q.commit_seq LIMIT 1) turn ON true
    LEFT JOIN LATERAL (
        SELECT s.batch_id, s.decision, s.decided_at FROM sluice.stopped_batch s
        WHERE s.pipeline = p.name AND NOT EXISTS (
            SELECT FROM sluice.delivery d WHERE (d.stream_id, d.batch_id) = (s.stream_id, s.batch_id))
        ORDER BY s.stopped_at DESC LIMIT 1) stop ON true
    LEFT JOIN LATERAL (
        SELECT r.started_at, r.ended_at FROM sluice.run r
        WHERE r.pipeline = p.name AND r.kind = 'stream' AND r.outcome IN ('done', 'stopped')
        ORDER BY r.started_at DESC LIMIT 1) ended_well ON true
    LEFT JOIN LATERAL (  -- a run that stays up, and has nothing to deliver, has not failed
        SELECT now() AS moment FROM sluice.run r
        WHERE r.run_id = p.lease_token AND r.seen_at > now() - interval '30 seconds'
          AND r.started_at < now() - interval '10 minutes'
          AND NOT EXISTS (SELECT FROM sluice.attempt a WHERE a.pipeline = p.name AND a.closed_at IS NULL
                          AND a.lease_token = r.run_id)) waits ON true
    LEFT JOIN LATERAL (
        SELECT d.committed_at FROM sluice.delivery d WHERE d.pipeline = p.name AND d.kind = 'stream'
        ORDER BY d.commit_seq DESC LIMIT 1) delivered ON true
    CROSS JOIN LATERAL (
        SELECT min(bad.moment) AS since,
               bool_or(bad.outcome NOT IN ('Busy', 'CommitUnknown', 'Fenced', 'KeyboardInterrupt', 'ServiceAway', 'Stopped')) AS lasts
        FROM (SELECT coalesce(r.outcome, 'killed') AS outcome, coalesce(r.ended_at, r.seen_at + interval '30 seconds') AS moment
              FROM sluice.run r
              WHERE r.pipeline = p.name AND r.kind = 'stream' AND r.started_at > coalesce(ended_well.started_at, '-infinity')
                AND (r.ended_at IS NOT NULL OR (r.run_id = p.lease_token AND r.seen_at <= now() - interval '30 seconds'))
                AND NOT (r.outcome IN ('ContractBroken', 'InputsUnreadable')
                         AND coalesce(stop.decided_at > r.ended_at, false))) bad
        WHERE bad.moment > coalesce(greatest(ended_well.ended_at, waits.moment, delivered.committed_at), '-infinity')) trouble;
COMMENT ON COLUMN sluice.quality_pipeline.retired_at IS 'When somebody said that it will not run again; null: nobody has since its last run began';
