-- name: register_pipeline
-- Makes sure that the pipeline has its row; returns nothing.
INSERT INTO sluice.pipeline (name, table_schema, table_name, anew)
VALUES (%(pipeline)s, %(table_schema)s, %(table_name)s, %(anew)s)
ON CONFLICT (name) DO UPDATE
SET table_schema = excluded.table_schema, table_name = excluded.table_name, anew = excluded.anew
WHERE (pipeline.table_schema, pipeline.table_name) = (excluded.table_schema, excluded.table_name)
   OR NOT EXISTS (SELECT FROM sluice.delivery d WHERE d.pipeline = excluded.name)

-- name: delivers_by_replace
-- Keeps that a batch took the place of all before it; the caller holds the row's lock.
UPDATE sluice.pipeline SET replaces = true WHERE name = %(pipeline)s AND replaces IS DISTINCT FROM true

-- name: pipeline_row
-- The pipeline's row as it is, without a lock.
SELECT p.name, p.table_schema, p.table_name, p.current_stream::text, p.replaces, p.anew
FROM sluice.pipeline p WHERE p.name = %(pipeline)s

-- name: lock_pipeline
-- Locks the pipeline's row until the transaction ends: every commit of the pipeline starts with it. Keys can
-- still be referenced, and heartbeats and endings go to the run's row, so a long merge holds up commits alone.
SELECT p.current_stream::text, p.lease_token::text FROM sluice.pipeline p WHERE p.name = %(pipeline)s
FOR NO KEY UPDATE

-- name: wait_for_locks
-- How long what follows in the transaction waits for a lock.
SELECT set_config('lock_timeout', %(patience)s, true)

-- name: lease
-- Who holds the lease, and whether it was seen lately.
SELECT r.holder, r.seen_at > now() - %(silence)s::interval AS fresh
FROM sluice.pipeline p JOIN sluice.run r ON r.run_id = p.lease_token WHERE p.name = %(pipeline)s

-- name: insert_run
-- Records a run that has just taken the lease.
INSERT INTO sluice.run (run_id, pipeline, holder) VALUES (%(run)s, %(pipeline)s, %(holder)s)

-- name: take_lease
-- Gives the lease to a run; the caller holds the row's lock.
UPDATE sluice.pipeline SET lease_token = %(run)s WHERE name = %(pipeline)s

-- name: fence_attempts
-- Closes every attempt of the stream that is still open, for its run lost the lease.
UPDATE sluice.attempt a SET closed_at = now(), outcome = 'fenced' FROM sluice.run r
WHERE a.pipeline = %(pipeline)s AND a.closed_at IS NULL AND r.run_id = a.lease_token AND r.kind = 'stream'

-- name: close_dead_runs
-- Ends, on paper, the runs that were killed.
UPDATE sluice.run SET ended_at = now(), outcome = 'lost its lease',
    message = 'It was killed or cut off, and last seen at ' || to_char(seen_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC'
WHERE pipeline = %(pipeline)s AND ended_at IS NULL AND run_id <> %(run)s AND kind = 'stream'

-- name: heartbeat
-- Shows that the holder lives; changes no row when the lease was taken away, or a run beside the stream was ended.
UPDATE sluice.run r SET seen_at = now() FROM sluice.pipeline p
WHERE r.run_id = %(run)s AND p.name = %(pipeline)s
  AND (p.lease_token = r.run_id OR (r.kind <> 'stream' AND r.ended_at IS NULL))

-- name: stop_asked
-- Who asked this run to stop; no row when nobody did.
SELECT r.stop_asked_by FROM sluice.run r WHERE r.run_id = %(run)s AND r.stop_asked_at IS NOT NULL

-- name: ask_to_stop
-- Asks the run that has the pipeline's lease to stop, and returns it; no row when none has it.
UPDATE sluice.run r
SET stop_asked_at = coalesce(r.stop_asked_at, now()), stop_asked_by = coalesce(r.stop_asked_by, %(who)s)
FROM sluice.pipeline p WHERE p.name = %(pipeline)s AND r.run_id = p.lease_token AND r.ended_at IS NULL
RETURNING r.run_id::text, r.holder

-- name: run_ended
-- How a run ended, whether it was seen lately, and whether it has the lease still.
SELECT r.outcome, r.seen_at > now() - %(silence)s::interval AS fresh, p.lease_token IS NOT DISTINCT FROM r.run_id AS holds
FROM sluice.run r JOIN sluice.pipeline p ON p.name = r.pipeline WHERE r.run_id = %(run)s

-- name: give_lease_back
-- Ends the holder's lease; changes no row when it was taken away.
UPDATE sluice.pipeline SET lease_token = NULL WHERE name = %(pipeline)s AND lease_token = %(run)s

-- name: end_run
-- Records how a run ended.
UPDATE sluice.run SET ended_at = now(), outcome = %(outcome)s, message = %(message)s, remedy = %(remedy)s
WHERE run_id = %(run)s AND ended_at IS NULL

-- name: register_stream
-- Makes a stream known and the pipeline's current one.
WITH known AS (
    INSERT INTO sluice.stream (stream_id, pipeline, checkpoint, first_batch, state)
    VALUES (%(stream)s, %(pipeline)s, %(checkpoint)s, %(first_batch)s, %(state)s)
    ON CONFLICT (stream_id) DO NOTHING
)
UPDATE sluice.pipeline SET current_stream = %(stream)s WHERE name = %(pipeline)s

-- name: know_stream
-- Makes a stream known that is not the pipeline's current one: not any more, or not yet.
INSERT INTO sluice.stream (stream_id, pipeline, checkpoint, first_batch, state)
VALUES (%(stream)s, %(pipeline)s, %(checkpoint)s, %(first_batch)s, %(state)s) ON CONFLICT (stream_id) DO NOTHING

-- name: run_on_stream
-- Notes which stream a run works on.
UPDATE sluice.run SET stream_id = %(stream)s WHERE run_id = %(run)s

-- name: keep_state
-- Notes what a stream that has delivered nothing yet keeps between batches; changes no row when the lease is another's.
UPDATE sluice.stream s SET state = %(state)s FROM sluice.pipeline p
WHERE s.stream_id = %(stream)s AND p.name = %(pipeline)s AND p.lease_token = %(run)s
  AND NOT EXISTS (SELECT FROM sluice.delivery d WHERE d.stream_id = s.stream_id)

-- name: note_topics
-- Notes the ids of topics that the stream looks at for the first time, and returns those of all.
UPDATE sluice.stream SET topics = %(topics)s::jsonb || topics WHERE stream_id = %(stream)s RETURNING topics

-- name: stream_row
-- A stream, with the last batch that was delivered (null: none yet), whatever took its place since.
SELECT s.stream_id::text, s.pipeline, s.checkpoint, s.first_batch, s.state,
       (SELECT max(d.batch_id) FROM sluice.delivery d WHERE d.stream_id = s.stream_id) AS last_batch
FROM sluice.stream s WHERE s.stream_id = %(stream)s

-- name: open_attempt
-- Reserves the number of a delivery, before anything is written elsewhere.
INSERT INTO sluice.attempt (pipeline, stream_id, batch_id, lease_token)
VALUES (%(pipeline)s, %(stream)s, %(batch)s, %(run)s)
RETURNING delivery_id

-- name: close_attempt
-- Ends an open attempt.
UPDATE sluice.attempt SET closed_at = now(), outcome = %(outcome)s
WHERE delivery_id = %(delivery)s AND closed_at IS NULL

-- name: delivery_of_batch
-- The delivery of a batch, if there is one, whatever took its place since.
SELECT delivery_id, commit_seq, rows_in, delivered, quarantined, malformed
FROM sluice.delivery WHERE stream_id = %(stream)s AND batch_id = %(batch)s

-- name: delivery_exists
-- One row when the delivery is committed.
SELECT commit_seq FROM sluice.delivery WHERE delivery_id = %(delivery)s

-- name: last_delivery
-- The pipeline's newest delivery (null: none yet).
SELECT delivery_id FROM sluice.delivery WHERE pipeline = %(pipeline)s ORDER BY commit_seq DESC LIMIT 1

-- name: inputs_of_delivery
-- The recorded inputs of a delivery.
SELECT path, uri, size, mtime_ms, etag, source FROM sluice.delivery_input WHERE delivery_id = %(delivery)s
ORDER BY path

-- name: live_inputs
-- The inputs of all live deliveries of a pipeline.
SELECT i.path, i.uri, i.size, i.mtime_ms, i.etag, i.source
FROM sluice.delivery_input i WHERE i.pipeline = %(pipeline)s AND i.live ORDER BY i.path

-- name: live_deliveries
-- The live deliveries of a pipeline.
SELECT delivery_id FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live

-- name: holding
-- The deliveries of a pipeline that hold rows.
SELECT DISTINCT delivery_id FROM sluice.quarantine WHERE pipeline = %(pipeline)s AND status = 'held'

-- name: batches_in_force
-- The live deliveries of batches, in the order of their commits, with what each began with.
SELECT d.delivery_id, d.watermark_ms, coalesce(d.time_ms, (extract(epoch FROM d.committed_at) * 1000)::bigint)
FROM sluice.delivery d
WHERE d.pipeline = %(pipeline)s AND d.live AND d.kind <> 'release' ORDER BY d.commit_seq

-- name: insert_delivery
-- The ledger row of a delivery; the caller holds the lock of the pipeline's row.
WITH next AS (
    UPDATE sluice.pipeline SET commit_seq = commit_seq + 1 WHERE name = %(pipeline)s RETURNING commit_seq
)
INSERT INTO sluice.delivery (delivery_id, pipeline, stream_id, batch_id, commit_seq, run_id, rows_in, delivered,
    quarantined, malformed, checksum, quarantine_checksum, suite_digest, lookups, manifest, previous_delivery,
    metadata_location, quarantine_metadata_location, snapshot_id, kind, released_from, watermark_ms, time_ms,
    records, late, dropped)
SELECT %(delivery)s, %(pipeline)s, %(stream)s, %(batch)s, next.commit_seq, %(run)s, %(rows_in)s, %(delivered)s,
    %(quarantined)s, %(malformed)s, %(checksum)s, %(quarantine_checksum)s, %(suite_digest)s, %(lookups)s,
    %(manifest)s, %(previous)s, %(metadata_location)s, %(quarantine_metadata_location)s, %(snapshot_id)s,
    %(kind)s, %(released_from)s, %(watermark_ms)s, %(time_ms)s, %(records)s, %(late)s, %(dropped)s
FROM next

-- name: insert_inputs
-- The inputs of a delivery.
INSERT INTO sluice.delivery_input (delivery_id, pipeline, path, uri, size, mtime_ms, etag, source) VALUES %s

-- name: insert_files
-- The Parquet files of a delivery.
INSERT INTO sluice.delivery_file (delivery_id, kind, path, rows, bytes) VALUES %s

-- name: insert_quality
-- The verdict on a delivery, and what it means for whoever reads the rows; its rules are there already.
INSERT INTO sluice.quality (delivery_id, success, report, pipeline, commit_seq, state)
SELECT d.delivery_id, %(success)s, %(report)s, d.pipeline, d.commit_seq, CASE
        WHEN d.dropped > 0 THEN 'partial'
        WHEN d.delivered > 0 AND (
            EXISTS (SELECT FROM sluice.quality_rule r WHERE r.delivery_id = d.delivery_id AND NOT r.success
                    AND r.severity <> 'info' AND r.unexpected_count IS NULL)
            OR EXISTS (SELECT FROM sluice.stopped_batch s WHERE s.decision = 'accept'
                       AND (s.stream_id, s.batch_id) = (d.stream_id, d.batch_id))) THEN 'flawed'
        WHEN d.quarantined > 0 THEN 'held'
        WHEN NOT %(success)s THEN 'noted'
        ELSE 'good' END
FROM sluice.delivery d WHERE d.delivery_id = %(delivery)s

-- name: insert_quality_rules
-- The verdict rule by rule.
INSERT INTO sluice.quality_rule (delivery_id, number, reason, expectation, severity, success, element_count,
    unexpected_count, evaluated) VALUES %s

-- name: insert_column_metrics
-- What the columns of the batch looked like.
INSERT INTO sluice.column_metric (delivery_id, column_name, number, rows_seen, null_count, nan_count, minimum, maximum,
    mean, deviation, earliest, latest, distinct_estimate, p05, p50, p95, distinct_sketch, quantile_sketch) VALUES %s

-- name: record_stop
-- Records a batch that broke its contract; a decision of meanwhile stays only where it was on this very stop.
INSERT INTO sluice.stopped_batch AS s (stream_id, batch_id, pipeline, stops, report, suite_digest, lookups, share, broken,
                                       lapsed)
VALUES (%(stream)s, %(batch)s, %(pipeline)s, %(stops)s, %(report)s, %(suite_digest)s, %(lookups)s::jsonb, %(share)s,
        %(broken)s::jsonb, %(lapsed)s)
ON CONFLICT (stream_id, batch_id) DO UPDATE
SET stops = excluded.stops, report = excluded.report, stopped_at = now(), suite_digest = excluded.suite_digest,
    lookups = excluded.lookups, share = excluded.share, broken = excluded.broken, lapsed = excluded.lapsed,
    (decision, decided_by, why, decided_at) = (
        SELECT s.decision, s.decided_by, s.why, s.decided_at
        WHERE excluded.stops <@ s.stops
          AND (excluded.suite_digest, excluded.lookups, excluded.share, excluded.broken)
              IS NOT DISTINCT FROM (s.suite_digest, s.lookups, s.share, s.broken))

-- name: decision
-- What a person decided on a stopped batch, if anything.
SELECT decision, decided_by, why, stops, suite_digest, lookups, share, broken FROM sluice.stopped_batch
WHERE stream_id = %(stream)s AND batch_id = %(batch)s AND decision IS NOT NULL

-- name: undecide
-- Forgets the decision on a stopped batch, which stays stopped.
UPDATE sluice.stopped_batch SET decision = NULL, decided_by = NULL, why = NULL, decided_at = NULL
WHERE stream_id = %(stream)s AND batch_id = %(batch)s

-- name: decide
-- Records a decision on a stopped batch that was not delivered; returns the one of before. Changes no row when there is none.
WITH before AS (
    SELECT decision, decided_by FROM sluice.stopped_batch
    WHERE (pipeline, stream_id, batch_id) = (%(pipeline)s, %(stream)s, %(batch)s)
)
UPDATE sluice.stopped_batch s SET decision = %(decision)s, decided_by = %(who)s, why = %(why)s, decided_at = now()
WHERE s.pipeline = %(pipeline)s AND s.stream_id = %(stream)s AND s.batch_id = %(batch)s
  AND NOT EXISTS (SELECT FROM sluice.delivery d WHERE (d.stream_id, d.batch_id) = (s.stream_id, s.batch_id))
RETURNING stops, (SELECT decision FROM before), (SELECT decided_by FROM before)

-- name: forget_stops
-- Removes the stopped batches of streams that are no longer the pipeline's current one: no run can have them again.
DELETE FROM sluice.stopped_batch s USING sluice.pipeline p
WHERE s.pipeline = %(pipeline)s AND p.name = s.pipeline AND s.stream_id IS DISTINCT FROM p.current_stream

-- name: forget_stops_from
-- Removes the stopped batches of a stream from one on: they are planned anew, of other records.
DELETE FROM sluice.stopped_batch WHERE stream_id = %(stream)s AND batch_id >= %(batch)s

-- name: open_stops
-- Stopped batches of a pipeline that were not delivered since.
SELECT s.stream_id::text, s.batch_id, s.stops, s.decision, s.stopped_at FROM sluice.stopped_batch s
WHERE s.pipeline = %(pipeline)s
  AND NOT EXISTS (SELECT FROM sluice.delivery d WHERE (d.stream_id, d.batch_id) = (s.stream_id, s.batch_id))
ORDER BY s.stopped_at

-- name: pointer
-- Where an Iceberg table's current metadata is.
SELECT metadata_location FROM sluice.iceberg_tables
WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = %(table)s

-- name: create_pointer
-- The first pointer of a table; changes nothing when there is one.
INSERT INTO sluice.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
VALUES (%(catalog)s, %(namespace)s, %(table)s, %(location)s, 'TABLE')
ON CONFLICT DO NOTHING

-- name: create_namespace
-- Makes the namespace known to pyiceberg.
INSERT INTO sluice.iceberg_namespace_properties (catalog_name, namespace, property_key, property_value)
VALUES (%(catalog)s, %(namespace)s, 'exists', 'true')
ON CONFLICT DO NOTHING

-- name: swap_pointer
-- Publishes new metadata, under every name that the table has; returns no row when the pointer is no longer at its base.
WITH swapped AS (
    UPDATE sluice.iceberg_tables SET metadata_location = %(location)s, previous_metadata_location = %(base)s
    WHERE catalog_name = %(catalog)s AND table_namespace = %(namespace)s AND table_name = %(table)s
      AND metadata_location = %(base)s
    RETURNING catalog_name
), followed AS (
    UPDATE sluice.iceberg_tables t
    SET metadata_location = %(location)s, previous_metadata_location = t.metadata_location
    FROM swapped s, sluice.pipeline l JOIN sluice.published p ON p.pipeline = l.name
    WHERE (l.table_schema, l.table_name) = (%(namespace)s, %(table)s) AND t.catalog_name = s.catalog_name
      AND (t.table_namespace, t.table_name) = (p.schema_name, p.name)
)
SELECT FROM swapped

-- name: adopt_attempt
-- Makes an attempt known again under the number that its rows carry; changes no row where it is another's, or delivered.
INSERT INTO sluice.attempt (delivery_id, pipeline, stream_id, batch_id, lease_token, adopted)
VALUES (%(delivery)s, %(pipeline)s, %(stream)s, %(batch)s, %(run)s, true)
ON CONFLICT (delivery_id) DO UPDATE
SET lease_token = excluded.lease_token, closed_at = NULL, outcome = NULL, adopted = true
WHERE attempt.pipeline = excluded.pipeline AND (attempt.adopted OR attempt.lease_token = %(was)s)
  AND attempt.outcome IS DISTINCT FROM 'delivered'

-- name: newest
-- The pipeline's newest delivery, and where it left the metadata of its table and of its quarantine.
SELECT delivery_id, metadata_location AS data, quarantine_metadata_location AS quarantine FROM sluice.delivery
WHERE pipeline = %(pipeline)s ORDER BY commit_seq DESC LIMIT 1

-- name: known_streams
-- Which of these streams are there.
SELECT stream_id::text FROM sluice.stream WHERE stream_id = ANY(%(streams)s::uuid[])

-- name: known_attempts
-- Which of these delivery numbers PostgreSQL knows, of any pipeline, and the runs that were given them; not those
-- that an interrupted recover left.
SELECT delivery_id, lease_token::text AS run_id, outcome IS NOT DISTINCT FROM 'delivered' AS delivered,
       adopted AND pipeline = %(pipeline)s AS adopted
FROM sluice.attempt
WHERE delivery_id = ANY(%(deliveries)s) AND (NOT adopted OR outcome = 'delivered')

-- name: skip_numbers
-- Makes sure that numbers up to this one are never given out again.
SELECT setval('sluice.delivery_number', %(number)s) FROM sluice.delivery_number
WHERE last_value < %(number)s OR NOT is_called

-- name: same_server
-- Whether the last number was given out here.
SELECT k.server = t.server FROM sluice.number_server k, sluice.this_server t

-- name: lock_server
-- Lets one at a time find out which numbers are free here.
SELECT FROM sluice.number_server FOR UPDATE

-- name: keep_server
-- Notes that numbers are given out here.
UPDATE sluice.number_server SET server = t.server FROM sluice.this_server t

-- name: pipeline_tables
-- The table of each pipeline.
SELECT table_schema || '.' || table_name FROM sluice.pipeline

-- name: newest_delivery
-- The pipeline's newest delivery, and the run that made it.
SELECT delivery_id, run_id::text FROM sluice.delivery WHERE pipeline = %(pipeline)s ORDER BY commit_seq DESC LIMIT 1

-- name: newest_if_delivered
-- The same, if this one is delivered: by that run, or put back by another.
SELECT delivery_id, run_id::text FROM sluice.delivery
WHERE pipeline = %(pipeline)s AND EXISTS (
    SELECT FROM sluice.delivery d JOIN sluice.attempt a USING (delivery_id)
    WHERE d.delivery_id = %(delivery_id)s AND d.pipeline = %(pipeline)s
      AND (d.run_id::text = %(run_id)s OR a.adopted))
ORDER BY commit_seq DESC LIMIT 1

-- name: pending_outcomes
-- How the pipeline's runs ended since the last of them that came to its own end.
SELECT DISTINCT r.outcome FROM sluice.run r
WHERE r.pipeline = %(pipeline)s AND r.kind = 'stream' AND r.ended_at IS NOT NULL AND r.run_id <> %(run)s
  AND r.started_at > coalesce((
    SELECT max(well.started_at) FROM sluice.run well
    WHERE well.pipeline = %(pipeline)s AND well.kind = 'stream' AND well.outcome IN ('done', 'stopped', 'FilesUnread')), '-infinity')

-- name: last_run
-- How the pipeline's last ended run came out.
SELECT outcome, message, remedy, ended_at, holder FROM sluice.run
WHERE pipeline = %(pipeline)s AND ended_at IS NOT NULL AND run_id <> %(run)s AND kind = 'stream'
ORDER BY started_at DESC LIMIT 1

-- name: totals
-- What a pipeline has delivered so far.
SELECT count(*) AS deliveries, coalesce(sum(delivered), 0)::bigint AS delivered,
       coalesce(sum(quarantined), 0)::bigint AS quarantined, max(committed_at) AS last,
       coalesce(sum(dropped), 0)::bigint AS dropped, max(committed_at) FILTER (WHERE dropped > 0) AS last_dropped
FROM sluice.delivery WHERE pipeline = %(pipeline)s AND live

-- name: begin_airflow_try
-- Records that a try of an Airflow task has begun; the same try that begins again, after its worker died, is one.
INSERT INTO sluice.airflow_try
    (dag_id, dag_run_id, task_id, try_number, pipeline, run_type, clear_number, interval_start, interval_end)
VALUES (%(dag_id)s, %(dag_run_id)s, %(task_id)s, %(try_number)s, %(pipeline)s, %(run_type)s, %(clear_number)s,
        %(interval_start)s, %(interval_end)s)
ON CONFLICT (dag_id, dag_run_id, task_id, try_number) DO UPDATE
SET started_at = now(), ended_at = NULL, outcome = NULL, run_id = NULL, told_to = NULL

-- name: airflow_try_runs
-- Names the run that an Airflow try has become.
UPDATE sluice.airflow_try SET run_id = %(run)s
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s AND try_number = %(try_number)s

-- name: end_airflow_try
-- Records how an Airflow try ended.
UPDATE sluice.airflow_try SET ended_at = now(), outcome = %(outcome)s
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s AND try_number = %(try_number)s

-- name: unreported
-- Deliveries that no successful Airflow try has told of, in commit order, and whose place each took: live ones, and such
-- as were replaced before anybody was told of them. A try has told of all that was committed when it gathered what
-- there was to tell. Airflow did not take a try for a success that it tried again. Runs of the DAG for replays tell of
-- their own, and other runs of all others: within each of both they end one after the other. Where what was replaced is of
-- the others, who may not have told of it, so is what that had replaced itself.
WITH ours AS NOT MATERIALIZED (
    SELECT d.*, EXISTS (
        SELECT FROM sluice.airflow_try beside WHERE beside.run_id = d.run_id AND beside.dag_id = %(replays)s
    ) = (%(dag_id)s = %(replays)s) AS mine
    FROM sluice.delivery d WHERE pipeline = %(pipeline)s
)
SELECT delivery_id, live, delivered, quarantined, snapshot_id, commit_seq, ARRAY(
    WITH RECURSIVE old AS (
        SELECT o.delivery_id, o.mine FROM ours o WHERE o.superseded_by = d.delivery_id
        UNION ALL
        SELECT o.delivery_id, o.mine FROM old JOIN ours o ON o.superseded_by = old.delivery_id WHERE NOT old.mine
    ) SELECT delivery_id FROM old ORDER BY 1) AS replaced
FROM ours d
WHERE mine
  AND commit_seq > coalesce((
    SELECT t.told_to FROM sluice.airflow_try t
    WHERE t.pipeline = %(pipeline)s AND (t.dag_id = %(replays)s) = (%(dag_id)s = %(replays)s)
      AND t.outcome = 'done' AND t.told_to IS NOT NULL AND NOT EXISTS (
        SELECT FROM sluice.airflow_try again
        WHERE (again.dag_id, again.dag_run_id, again.task_id, again.clear_number)
            = (t.dag_id, t.dag_run_id, t.task_id, t.clear_number) AND again.try_number > t.try_number)
    ORDER BY t.told_to DESC LIMIT 1), 0)
ORDER BY commit_seq

-- name: airflow_try_tells
-- Records how far a try tells, should it end well.
UPDATE sluice.airflow_try SET told_to = %(told_to)s
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s AND try_number = %(try_number)s

-- name: replayed_before
-- The run by which an earlier try of a task, since its DAG run was last cleared, has replayed what was asked for.
SELECT t.run_id::text FROM sluice.airflow_try t JOIN sluice.delivery d ON d.run_id = t.run_id
WHERE t.dag_id = %(dag_id)s AND t.dag_run_id = %(dag_run_id)s AND t.task_id = %(task_id)s
  AND t.clear_number = %(clear_number)s AND t.try_number < %(try_number)s AND d.kind = 'replay' LIMIT 1

-- name: delivered_by_run
-- What all tries of a task in a DAG run delivered.
SELECT delivery_id FROM sluice.airflow_delivery
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s

-- name: runs_before_clear
-- The runs of this task in this DAG run before it was last cleared, and how each try ended; in their order.
SELECT run_id::text, outcome FROM sluice.airflow_try
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s
  AND clear_number < %(clear_number)s ORDER BY try_number
