-- How far looks for alerts have come in what runs did with their records: each run is told of once, however many end between two looks.

CREATE TABLE sluice.alert_watch (
    pipeline        text PRIMARY KEY REFERENCES sluice.pipeline (name) DEFERRABLE,
    commit_seq      bigint NOT NULL
);
COMMENT ON TABLE sluice.alert_watch IS 'How far looks for alerts have come in the deliveries of each pipeline';
COMMENT ON COLUMN sluice.alert_watch.pipeline IS 'The pipeline';
COMMENT ON COLUMN sluice.alert_watch.commit_seq IS 'The commit up to which they have looked';

-- What was delivered before is no news.
INSERT INTO sluice.alert_watch SELECT pipeline, max(commit_seq) FROM sluice.delivery GROUP BY pipeline;
