-- Troubles that people are told of, and the messages that tell of them: an outbox.

CREATE TABLE sluice.alert (
    alert_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline        text NOT NULL,
    kind            text NOT NULL,
    about           text NOT NULL DEFAULT '',
    known_as        text NOT NULL,
    text            text NOT NULL,
    times           integer NOT NULL DEFAULT 1,
    share_limit     double precision,
    opened_at       timestamptz NOT NULL DEFAULT now(),
    last_at         timestamptz NOT NULL DEFAULT now(),
    acknowledged_at timestamptz,
    acknowledged_by text,
    resolved_at     timestamptz,
    resolved_by     text,
    CONSTRAINT acknowledged_by_somebody CHECK ((acknowledged_at IS NULL) = (acknowledged_by IS NULL)),
    CONSTRAINT resolved_by_something CHECK ((resolved_at IS NULL) = (resolved_by IS NULL))
);
CREATE UNIQUE INDEX one_open_alert ON sluice.alert (pipeline, kind, about) WHERE resolved_at IS NULL;
COMMENT ON TABLE sluice.alert IS 'Troubles that people are told of; one is open, at most, of each pipeline, kind and matter';
COMMENT ON COLUMN sluice.alert.alert_id IS 'Number of the alert, as `sluice alerts` has it';
COMMENT ON COLUMN sluice.alert.pipeline IS 'The pipeline, which may be too broken to be on record';
COMMENT ON COLUMN sluice.alert.kind IS 'failed, question, waiting, quarantine, dropped, drift, consumer, deadline, freshness or volume';
COMMENT ON COLUMN sluice.alert.about IS 'What tells troubles of one kind apart, such as audit or a consumer; empty: nothing has to';
COMMENT ON COLUMN sluice.alert.known_as IS 'Its key to whoever is told of it: a pipeline that is renamed has another from then on';
COMMENT ON COLUMN sluice.alert.text IS 'What was found when it was last found';
COMMENT ON COLUMN sluice.alert.times IS 'How often it was found since it is open';
COMMENT ON COLUMN sluice.alert.share_limit IS 'Of kind quarantine: the share of held records that was passed';
COMMENT ON COLUMN sluice.alert.opened_at IS 'When it was found first';
COMMENT ON COLUMN sluice.alert.last_at IS 'When it was found last; what ends it comes later';
COMMENT ON COLUMN sluice.alert.acknowledged_at IS 'When somebody took it up: no reminder is sent from then on; null: nobody has';
COMMENT ON COLUMN sluice.alert.acknowledged_by IS 'Who';
COMMENT ON COLUMN sluice.alert.resolved_at IS 'When it was seen to be over; null: it is open';
COMMENT ON COLUMN sluice.alert.resolved_by IS 'What ended it, or who said so';

CREATE TABLE sluice.alert_message (
    message_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    alert_id        bigint NOT NULL REFERENCES sluice.alert (alert_id) ON DELETE CASCADE,
    destination     text NOT NULL,
    event           text NOT NULL CHECK (event IN ('triggered', 'reminder', 'acknowledged', 'resolved')),
    made_at         timestamptz NOT NULL DEFAULT now(),
    due_at          timestamptz NOT NULL DEFAULT now(),
    under_way       boolean NOT NULL DEFAULT false,
    tries           integer NOT NULL DEFAULT 0,
    problem         text,
    sent_at         timestamptz
);
CREATE INDEX alert_message_unsent ON sluice.alert_message (message_id) WHERE sent_at IS NULL;
CREATE INDEX alert_message_of ON sluice.alert_message (alert_id);
COMMENT ON TABLE sluice.alert_message IS 'Messages about alerts, one for each destination; what is not taken is sent again';
COMMENT ON COLUMN sluice.alert_message.message_id IS 'Number of the message: of one destination the lowest goes first';
COMMENT ON COLUMN sluice.alert_message.alert_id IS 'The alert';
COMMENT ON COLUMN sluice.alert_message.destination IS 'slack, teams, pagerduty, webhook or email';
COMMENT ON COLUMN sluice.alert_message.event IS 'What it tells: triggered, reminder, acknowledged or resolved';
COMMENT ON COLUMN sluice.alert_message.made_at IS 'When it was written';
COMMENT ON COLUMN sluice.alert_message.due_at IS 'When it is tried next, unless it was sent';
COMMENT ON COLUMN sluice.alert_message.under_way IS 'Whether a sender has it, until due_at, or died with it';
COMMENT ON COLUMN sluice.alert_message.tries IS 'How often it was not taken';
COMMENT ON COLUMN sluice.alert_message.problem IS 'Why it was not taken the last time, without any address';
COMMENT ON COLUMN sluice.alert_message.sent_at IS 'When it was taken; null: not yet';

-- A look asks for the stream's deliveries of some weeks, every five minutes.
CREATE INDEX delivery_of_stream ON sluice.delivery (pipeline, committed_at) WHERE kind = 'stream';
