-- A run may be asked to stop after the batch in flight, from any machine.

ALTER TABLE sluice.run
    ADD COLUMN stop_asked_at timestamptz,
    ADD COLUMN stop_asked_by text,
    ADD CONSTRAINT stop_has_its_asker CHECK ((stop_asked_at IS NULL) = (stop_asked_by IS NULL));
COMMENT ON COLUMN sluice.run.stop_asked_at IS 'When `sluice stop` asked it to end after the batch in flight; null: nobody has';
COMMENT ON COLUMN sluice.run.stop_asked_by IS 'Who asked';
COMMENT ON COLUMN sluice.run.outcome IS 'done; stopped: it was asked to, by `sluice stop` or a signal, and ended after a whole batch; or the name of the error that ended it';
