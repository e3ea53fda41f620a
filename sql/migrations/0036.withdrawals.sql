-- Withdrawals, which take deliveries out of both sinks and bring nothing: their inputs are read again by the stream.

ALTER TABLE sluice.run DROP CONSTRAINT run_kind_check,
    ADD CONSTRAINT run_kind_check CHECK (kind IN ('stream', 'replay', 'release', 'withdrawal'));
COMMENT ON COLUMN sluice.run.kind IS 'stream, replay, release or withdrawal';
COMMENT ON COLUMN sluice.run.who IS 'Who asked for a replay, a release or a withdrawal';
COMMENT ON COLUMN sluice.run.plan IS 'What a replay or a withdrawal said that it would do, before it began';

ALTER TABLE sluice.delivery DROP CONSTRAINT delivery_kind_check,
    ADD CONSTRAINT delivery_kind_check CHECK (kind IN ('stream', 'replay', 'release', 'withdrawal')),
    ADD CONSTRAINT withdrawal_brings_nothing CHECK (kind <> 'withdrawal' OR rows_in = 0);
COMMENT ON COLUMN sluice.delivery.kind IS 'stream: a batch of the stream; replay: it took the place of others; release: rows let out of quarantine; withdrawal: it took others out, whose inputs are read again, and brought no row';
COMMENT ON COLUMN sluice.quarantine.status IS 'held; released: another delivery has it; discarded: given up by a person; superseded: its batch was replayed or withdrawn';
