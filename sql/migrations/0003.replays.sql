-- Deliveries beside the stream: replays, which take the place of earlier ones, and releases from quarantine.

ALTER TABLE sluice.stream ALTER COLUMN checkpoint DROP NOT NULL;
COMMENT ON COLUMN sluice.stream.checkpoint IS 'Where the checkpoint is; null for the one batch of a replay or a release';

ALTER TABLE sluice.run
    ADD COLUMN kind text NOT NULL DEFAULT 'stream' CHECK (kind IN ('stream', 'replay', 'release')),
    ADD COLUMN who text,
    ADD COLUMN why text,
    ADD COLUMN plan jsonb;
COMMENT ON TABLE sluice.run IS 'One row a run: of the stream, under the pipeline''s lease, or of a replay or a release beside it';
COMMENT ON COLUMN sluice.run.run_id IS 'Random id of the run; also the lease token it was given, or the stream of its one batch where it runs beside the stream';
COMMENT ON COLUMN sluice.run.kind IS 'stream, replay or release';
COMMENT ON COLUMN sluice.run.who IS 'Who asked for a replay or a release';
COMMENT ON COLUMN sluice.run.why IS 'The reason given';
COMMENT ON COLUMN sluice.run.plan IS 'What a replay said that it would replace, before it began';

ALTER TABLE sluice.delivery
    ADD COLUMN kind text NOT NULL DEFAULT 'stream' CHECK (kind IN ('stream', 'replay', 'release')),
    ADD COLUMN superseded_by bigint REFERENCES sluice.delivery (delivery_id),
    ADD COLUMN released_from bigint REFERENCES sluice.delivery (delivery_id),
    ADD CONSTRAINT live_or_superseded CHECK (live = (superseded_by IS NULL)),
    ADD CONSTRAINT release_has_its_batch CHECK ((kind = 'release') = (released_from IS NOT NULL));
CREATE INDEX delivery_released_from ON sluice.delivery (released_from) WHERE released_from IS NOT NULL;
COMMENT ON COLUMN sluice.delivery.kind IS 'stream: a batch of the stream; replay: it took the place of others; release: rows let out of quarantine';
COMMENT ON COLUMN sluice.delivery.superseded_by IS 'The delivery that took its place; null while it is live';
COMMENT ON COLUMN sluice.delivery.released_from IS 'Of a release: the delivery that had held its rows';

-- A batch is delivered once, whatever takes its place later.
DROP INDEX sluice.one_batch_one_delivery;
CREATE UNIQUE INDEX one_batch_one_delivery ON sluice.delivery (stream_id, batch_id);

ALTER TABLE sluice.quarantine
    DROP CONSTRAINT quarantine_status_check,
    ADD CONSTRAINT status_known CHECK (status IN ('held', 'released', 'discarded', 'superseded')),
    ADD COLUMN released_by bigint REFERENCES sluice.delivery (delivery_id),
    ADD COLUMN decided_by text,
    ADD COLUMN why text,
    ADD COLUMN decided_at timestamptz,
    ADD CONSTRAINT released_by_delivery CHECK ((status = 'released') = (released_by IS NOT NULL) OR status = 'superseded');
COMMENT ON COLUMN sluice.quarantine.status IS 'held; released: another delivery has it; discarded: given up by a person; superseded: its batch was replayed';
COMMENT ON COLUMN sluice.quarantine.released_by IS 'The delivery that let it out: it was delivered there, or held once more';
COMMENT ON COLUMN sluice.quarantine.decided_by IS 'Who released or discarded it';
COMMENT ON COLUMN sluice.quarantine.why IS 'The reason given';
COMMENT ON COLUMN sluice.quarantine.decided_at IS 'When';

CREATE VIEW sluice.replaced AS
    SELECT d.pipeline, d.delivery_id, d.stream_id, d.batch_id, d.superseded_by, n.commit_seq AS superseded_seq,
           n.committed_at AS superseded_at
    FROM sluice.delivery d JOIN sluice.delivery n ON n.delivery_id = d.superseded_by;
COMMENT ON VIEW sluice.replaced IS 'Which deliveries were replaced, by which, and when: for consumers that had read the old ones';
