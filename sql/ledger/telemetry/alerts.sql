-- name: open_alert
-- Opens an alert, or counts it once more where it is open; `again` is 0 for what is only still there.
INSERT INTO sluice.alert AS a (pipeline, kind, about, known_as, text, share_limit)
VALUES (%(pipeline)s, %(kind)s, %(about)s, %(known_as)s, %(text)s, %(share_limit)s)
ON CONFLICT (pipeline, kind, about) WHERE resolved_at IS NULL DO UPDATE
SET text = excluded.text, share_limit = excluded.share_limit, times = a.times + %(again)s,
    last_at = CASE WHEN %(again)s = 0 THEN a.last_at ELSE clock_timestamp() END
RETURNING alert_id, xmax = 0 AS is_new

-- name: add_messages
-- Writes a message about an alert for each of these destinations.
INSERT INTO sluice.alert_message (alert_id, destination, event)
SELECT %(alert)s, unnest(%(destinations)s::text[]), %(event)s

-- name: drop_untold
-- Drops the messages about these alerts that were not taken, but for those that a sender has now.
DELETE FROM sluice.alert_message WHERE alert_id = ANY (%(alerts)s) AND sent_at IS NULL AND NOT under_way

-- name: tell_who_knows
-- Writes a message about these alerts for each destination that has been told of them, or is being told.
INSERT INTO sluice.alert_message (alert_id, destination, event)
SELECT DISTINCT alert_id, destination, %(event)s FROM sluice.alert_message WHERE alert_id = ANY (%(alerts)s)

-- name: lock_waiting
-- The open alerts that nobody has taken up, locked, but for those that somebody else changes or reminds of at this moment.
SELECT alert_id FROM sluice.alert WHERE resolved_at IS NULL AND acknowledged_at IS NULL FOR UPDATE SKIP LOCKED

-- name: remind
-- Writes a reminder of these alerts to whom the last message has gone long enough ago: as its pipeline has it, where null
-- is never, or else as by `otherwise`.
INSERT INTO sluice.alert_message (alert_id, destination, event)
SELECT a.alert_id, m.destination, 'reminder' FROM sluice.alert a JOIN sluice.alert_message m USING (alert_id)
LEFT JOIN unnest(%(pipelines)s::text[], %(repeats)s::interval[]) AS declared (pipeline, every) ON declared.pipeline = a.pipeline
WHERE a.alert_id = ANY (%(alerts)s)
GROUP BY a.alert_id, m.destination, declared.pipeline, declared.every
HAVING bool_and(m.sent_at IS NOT NULL)
   AND max(m.sent_at) <= now() - CASE WHEN declared.pipeline IS NULL THEN %(otherwise)s::interval ELSE declared.every END

-- name: acknowledge
-- Notes who has taken up these open alerts; returns those that nobody had.
UPDATE sluice.alert SET acknowledged_at = now(), acknowledged_by = %(who)s
WHERE alert_id = ANY (%(alerts)s) AND resolved_at IS NULL AND acknowledged_at IS NULL RETURNING alert_id

-- name: resolve
-- Ends these open alerts by what a person says; returns those that it ended.
UPDATE sluice.alert SET resolved_at = now(), resolved_by = %(by)s
WHERE alert_id = ANY (%(alerts)s) AND resolved_at IS NULL RETURNING alert_id

-- name: open_of
-- The open alert of a pipeline, kind and matter, if there is one.
SELECT alert_id FROM sluice.alert
WHERE (pipeline, kind, about) = (%(pipeline)s, %(kind)s, %(about)s) AND resolved_at IS NULL

-- name: open_of_pipelines
-- The open alerts of these pipelines.
SELECT alert_id FROM sluice.alert WHERE pipeline = ANY (%(pipelines)s) AND resolved_at IS NULL

-- name: thresholds_beyond
-- The open alerts of thresholds whose pipeline is none of these.
SELECT alert_id FROM sluice.alert
WHERE kind IN ('freshness', 'volume') AND resolved_at IS NULL AND pipeline <> ALL (%(pipelines)s)

-- name: settle
-- Ends the open alerts whose trouble the ledger shows to be over, of one pipeline or of all: a batch has come since, and for
-- what is about records the newest is not like it; or a run, an audit or a sweep has ended well; or, of a question, somebody has
-- decided. Those of thresholds others end.
WITH over AS (
    SELECT a.alert_id, CASE
        WHEN p.retired_at IS NOT NULL THEN 'the pipeline is retired'
        WHEN a.kind IN ('freshness', 'volume') THEN NULL
        WHEN a.kind = 'consumer' THEN CASE WHEN NOT EXISTS (
            SELECT FROM sluice.consumer_lag l WHERE l.pipeline = a.pipeline AND l.consumer = a.about AND l.late)
            THEN 'it is not too far behind any more' END
        WHEN a.about IN ('audit', 'sweep') THEN CASE WHEN kept.ended_at IS NOT NULL THEN format('its %%s ended well', a.about) END
        WHEN a.about = 'replays' THEN CASE WHEN beside.ended IS NOT NULL THEN 'a replay or a release ended well' END
        WHEN a.kind = 'quarantine' AND came.beyond THEN NULL
        WHEN a.kind = 'dropped' AND came.dropped THEN NULL
        WHEN a.kind = 'drift' AND came.drifted THEN NULL
        WHEN came.newest IS NOT NULL THEN format('delivery %%s came', came.newest)
        WHEN a.kind IN ('quarantine', 'dropped', 'drift') THEN NULL
        WHEN ran.ended IS NOT NULL THEN 'a run ended well'
        WHEN a.kind = 'question' AND decided.by IS NOT NULL THEN format('%%s decided', decided.by)
    END AS by
    FROM sluice.alert a
    LEFT JOIN sluice.pipeline p ON p.name = a.pipeline
    LEFT JOIN sluice.maintenance kept ON (kept.pipeline, kept.command) = (a.pipeline, a.about) AND kept.differences = 0
                                     AND kept.ended_at > a.last_at
    LEFT JOIN LATERAL (
        SELECT d.delivery_id AS newest, d.committed_at,
               d.quarantined > a.share_limit * greatest(d.rows_in, d.records, 1) AS beyond,
               coalesce(d.dropped, 0) > 0 AS dropped,
               coalesce(d.unknown, d.missing) IS NOT NULL AS drifted
        FROM sluice.delivery d WHERE d.pipeline = a.pipeline AND d.kind = 'stream'
        ORDER BY d.commit_seq DESC LIMIT 1) came ON came.committed_at > a.last_at
    CROSS JOIN LATERAL (
        SELECT max(r.ended_at) AS ended FROM sluice.run r
        WHERE r.pipeline = a.pipeline AND r.kind = 'stream' AND r.outcome IN ('done', 'stopped')
          AND r.ended_at > a.last_at) ran
    CROSS JOIN LATERAL (
        SELECT max(r.ended_at) AS ended FROM sluice.run r
        WHERE r.pipeline = a.pipeline AND r.kind <> 'stream' AND r.outcome = 'done' AND r.ended_at > a.last_at) beside
    LEFT JOIN LATERAL (
        SELECT s.decided_by AS by FROM sluice.stopped_batch s
        WHERE s.pipeline = a.pipeline AND s.decided_at > a.last_at ORDER BY s.decided_at DESC LIMIT 1) decided ON true
    WHERE a.resolved_at IS NULL AND a.pipeline = coalesce(%(pipeline)s, a.pipeline)
)
UPDATE sluice.alert a SET resolved_at = now(), resolved_by = over.by
FROM over WHERE a.alert_id = over.alert_id AND over.by IS NOT NULL AND a.resolved_at IS NULL RETURNING a.alert_id

-- name: claim
-- Claims the next message to be sent to any of these destinations, for as long as a sender may take at most; of one alert
-- and destination the message before goes first. Its pipeline has a page where it is on record.
UPDATE sluice.alert_message m SET under_way = true, due_at = clock_timestamp() + interval '5 minutes'
FROM sluice.alert a
WHERE a.alert_id = m.alert_id AND m.message_id = (
    SELECT m.message_id FROM sluice.alert_message m JOIN sluice.alert a USING (alert_id)
    WHERE m.sent_at IS NULL AND m.due_at <= clock_timestamp() AND m.destination = ANY (%(destinations)s)
      AND a.pipeline = coalesce(%(pipeline)s, a.pipeline)
      AND NOT EXISTS (SELECT FROM sluice.alert_message b WHERE b.alert_id = m.alert_id AND b.destination = m.destination
                      AND b.sent_at IS NULL AND b.message_id < m.message_id)
    ORDER BY m.message_id LIMIT 1 FOR UPDATE OF m SKIP LOCKED)
RETURNING m.message_id, m.destination, m.event,
          EXISTS (SELECT FROM sluice.pipeline p WHERE p.name = a.pipeline) AS on_record, a.*

-- name: sent
-- Notes that the destination has taken a message.
UPDATE sluice.alert_message SET sent_at = clock_timestamp(), under_way = false, problem = NULL WHERE message_id = %(message)s

-- name: not_taken
-- Notes why a message was not taken; it is tried again after a pause, twice as long each time, an hour at most.
UPDATE sluice.alert_message SET tries = tries + 1, under_way = false, problem = %(problem)s,
       due_at = clock_timestamp() + least(interval '1 minute' * power(2, least(tries, 10)), interval '1 hour')
WHERE message_id = %(message)s

-- name: alerts
-- The open alerts, of one pipeline or of all, the newest first, so many at most; with `closed` also those that are over.
SELECT a.*, (SELECT count(*) FROM sluice.alert_message m WHERE m.alert_id = a.alert_id AND m.sent_at IS NULL) AS unsent,
       (SELECT m.problem FROM sluice.alert_message m WHERE m.alert_id = a.alert_id AND m.sent_at IS NULL AND m.problem IS NOT NULL
        ORDER BY m.message_id DESC LIMIT 1) AS problem
FROM sluice.alert a
WHERE a.pipeline = coalesce(%(pipeline)s, a.pipeline) AND (%(closed)s OR a.resolved_at IS NULL)
ORDER BY a.alert_id DESC LIMIT %(limit)s

-- name: count_open
-- How many alerts of a pipeline are open.
SELECT count(*) FROM sluice.alert WHERE pipeline = %(pipeline)s AND resolved_at IS NULL

-- name: alert
-- The alert of this number, if it is of the pipeline.
SELECT * FROM sluice.alert WHERE alert_id = %(alert)s AND pipeline = %(pipeline)s

-- name: old
-- How many alerts of a pipeline are over for longer than the retention, with nothing left to send.
SELECT count(*) FROM sluice.alert a
WHERE a.pipeline = %(pipeline)s AND a.resolved_at < now() - %(retention)s
  AND NOT EXISTS (SELECT FROM sluice.alert_message m WHERE m.alert_id = a.alert_id AND m.sent_at IS NULL)

-- name: forget_old
-- Takes the oldest of these out, with their messages.
DELETE FROM sluice.alert WHERE alert_id IN (
    SELECT a.alert_id FROM sluice.alert a
    WHERE a.pipeline = %(pipeline)s AND a.resolved_at < now() - %(retention)s
      AND NOT EXISTS (SELECT FROM sluice.alert_message m WHERE m.alert_id = a.alert_id AND m.sent_at IS NULL)
    ORDER BY a.alert_id LIMIT %(most)s)
