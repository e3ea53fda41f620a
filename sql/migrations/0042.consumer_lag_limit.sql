-- How far the consumers of a pipeline may be behind.

ALTER TABLE sluice.pipeline ADD COLUMN consumer_lag_limit interval;
COMMENT ON COLUMN sluice.pipeline.consumer_lag_limit IS 'How long what it delivers may wait for a consumer, as its last run had it declared; null: as long as it likes';

CREATE OR REPLACE VIEW sluice.consumer_lag AS
    SELECT c.pipeline, c.name AS consumer, c.commit_seq, c.delivery_id, newest.commit_seq AS newest_seq,
           newest.delivery_id AS newest_delivery,
           (SELECT count(*) FROM sluice.delivery d WHERE d.pipeline = c.pipeline AND d.commit_seq > c.commit_seq) AS deliveries,
           (SELECT coalesce(sum(new.rows), 0)::bigint FROM sluice.changes(c.pipeline, c.commit_seq) new) AS rows,
           next.committed_at AS behind_since, c.moved_at, c.created_at, p.consumer_lag_limit AS lag_limit,
           coalesce(now() - next.committed_at > p.consumer_lag_limit, false) AS late
    FROM sluice.consumer c JOIN sluice.pipeline p ON p.name = c.pipeline
    LEFT JOIN LATERAL (
        SELECT d.commit_seq, d.delivery_id FROM sluice.delivery d WHERE d.pipeline = c.pipeline
        ORDER BY d.commit_seq DESC LIMIT 1) newest ON true
    LEFT JOIN LATERAL (
        SELECT d.committed_at FROM sluice.delivery d WHERE d.pipeline = c.pipeline AND d.commit_seq > c.commit_seq
        ORDER BY d.commit_seq LIMIT 1) next ON true;
COMMENT ON COLUMN sluice.consumer_lag.lag_limit IS 'How far behind it may be; null: that is not said';
COMMENT ON COLUMN sluice.consumer_lag.late IS 'Whether it is further behind than that';
