-- Which topics a stream began to read: before its first delivery nothing else tells that one was made anew.

ALTER TABLE sluice.stream ADD COLUMN topics jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN sluice.stream.topics IS 'The id that each topic had when the stream first looked at it; empty where it reads none';
