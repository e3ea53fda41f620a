-- A long history of one pipeline, made by the server itself: batches × rules, held rows, runs, files.
INSERT INTO sluice.pipeline (name, table_schema, table_name, commit_seq)
VALUES (%(name)s, 'warehouse', %(name)s, %(batches)s);

INSERT INTO sluice.stream (stream_id, pipeline, checkpoint, first_batch)
VALUES (%(stream)s, %(name)s, '/checkpoints/' || %(name)s, 0);

UPDATE sluice.pipeline SET current_stream = %(stream)s WHERE name = %(name)s;

-- a run delivers ten batches
INSERT INTO sluice.run (run_id, pipeline, stream_id, holder, started_at, ended_at, outcome)
SELECT md5(%(name)s || n)::uuid, %(name)s, %(stream)s, 'host 1', moment, moment + interval '5 min', 'done'
FROM generate_series(0, %(batches)s / 10) AS n,
     LATERAL (SELECT now() - (%(batches)s / 10 - n) * interval '10 h' AS moment);

INSERT INTO sluice.airflow_try (dag_id, dag_run_id, task_id, try_number, pipeline, run_type, clear_number,
                                interval_start, interval_end, started_at, ended_at, outcome, run_id)
SELECT %(name)s, 'scheduled__' || n, 'run', 1, %(name)s, 'scheduled', 0, started_at - interval '10 h', started_at,
       started_at, ended_at, 'done', run_id
FROM generate_series(0, %(batches)s / 10) AS n JOIN sluice.run ON run_id = md5(%(name)s || n)::uuid;

INSERT INTO sluice.delivery (delivery_id, pipeline, stream_id, batch_id, commit_seq, live, run_id, rows_in, delivered,
    quarantined, malformed, checksum, quarantine_checksum, suite_digest, lookups, manifest, previous_delivery,
    metadata_location, quarantine_metadata_location, snapshot_id, committed_at)
SELECT %(first)s + n, %(name)s, %(stream)s, n, n + 1, true, md5(%(name)s || n / 10)::uuid, 1000, 1000 - bad, bad,
       CASE WHEN n %% 50 = 0 THEN bad ELSE 0 END, 0, 0, md5((n / 400)::text), '{}', 's3://lake/deliveries/' || n || '.json', nullif(%(first)s + n - 1, %(first)s - 1),
       's3://lake/m', 's3://lake/q', n, now() - (%(batches)s - n) * interval '1 h'
FROM generate_series(0, %(batches)s - 1) AS n, LATERAL (SELECT CASE WHEN n %% 3 = 0 THEN 5 ELSE 0 END AS bad);

INSERT INTO sluice.quality_rule (delivery_id, number, reason, expectation, severity, success, element_count,
    unexpected_count, evaluated)
SELECT d.delivery_id, k, 'rule ' || k || ' about a column of the feed', 'expect_column_values_to_be_between',
       (ARRAY['critical', 'warning', 'info'])[1 + k %% 3],
       d.quarantined = 0 OR k %% 3 = 0, CASE WHEN k %% 10 < 9 THEN 1000 END,
       CASE WHEN k %% 10 < 9 THEN CASE WHEN d.quarantined > 0 AND k %% 3 > 0 THEN 1 + (d.batch_id * k) %% 700 ELSE 0 END END,
       'pass'
FROM sluice.delivery d, generate_series(0, %(rules)s - 1) AS k WHERE d.pipeline = %(name)s;

-- numbers, but for the last column, which has moments
INSERT INTO sluice.column_metric (delivery_id, column_name, number, rows_seen, null_count, nan_count, minimum, maximum,
    mean, deviation, p05, p50, p95, distinct_estimate, earliest, latest)
SELECT d.delivery_id, 'c' || k, k, 1000, (d.batch_id + k) %% 40, 0, v.low, v.low + 100, v.low + 50, 20, v.low + 5, v.low + 45,
       v.low + 95, 900 + k, v.late - v.low * interval '1 day', v.late
FROM sluice.delivery d, generate_series(0, 9) AS k,
     LATERAL (SELECT CASE WHEN k < 9 THEN (d.batch_id %% 7) - 20.5 END AS low,
                     CASE WHEN k = 9 THEN d.committed_at - interval '2 h' END AS late) AS v
WHERE d.pipeline = %(name)s;

-- whole reports for the newest batches; short ones before
INSERT INTO sluice.quality (delivery_id, success, report, pipeline, commit_seq, state)
SELECT d.delivery_id, d.quarantined = 0,
       CASE WHEN d.batch_id < %(batches)s - 100 THEN '{"results": []}' ELSE jsonb_build_object('results', (
           SELECT jsonb_agg(jsonb_build_object(
               'success', r.success,
               'expectation_config', jsonb_build_object('type', r.expectation, 'severity', r.severity,
                   'kwargs', jsonb_build_object('column', 'c' || r.number, 'min_value', 0),
                   'meta', jsonb_build_object('name', r.reason), 'notes', 'What the column means, in a sentence or two.'),
               'result', jsonb_build_object('element_count', r.element_count, 'unexpected_count', r.unexpected_count,
                   'unexpected_percent', r.unexpected_count / 10.0, 'missing_count', 0,
                   'partial_unexpected_list', (SELECT jsonb_agg(-v - 0.25) FROM generate_series(1, 20) AS v)))
               ORDER BY r.number)
           FROM sluice.quality_rule r WHERE r.delivery_id = d.delivery_id))::text END,
       d.pipeline, d.commit_seq, CASE WHEN d.quarantined > 0 THEN 'held' ELSE 'good' END
FROM sluice.delivery d WHERE d.pipeline = %(name)s;

-- as of a transform that keeps state
UPDATE sluice.delivery SET late = 31 WHERE pipeline = %(name)s AND batch_id = %(batches)s - 1;
INSERT INTO sluice.batch_progress (stream_id, batch_id, run_id, triggered_at, input_rows, input_rate, processed_rate,
    durations_ms, phases_ms, watermark, latest, operators, state_rows, state_bytes, dropped, doubles, behind, ends)
SELECT d.stream_id, d.batch_id, d.run_id, d.committed_at - interval '3 s', 1000, nullif(d.batch_id %% 10, 0) * 12.5,
       300 + d.batch_id %% 90, jsonb_build_object('addBatch', 2600 + d.batch_id %% 500, 'getBatch', 7, 'latestOffset', 90,
           'queryPlanning', 30, 'walCommit', 40, 'commitOffsets', 45, 'triggerExecution', 2900 + d.batch_id %% 500),
       jsonb_build_object('stage', 1800 + d.batch_id %% 500, 'judge', 90, 'draft', 250, 'transaction', 110),
       d.committed_at - interval '2 h', d.committed_at - interval '5 min',
       '[{"name": "stateStoreSave", "rows": 5000, "updated": 40, "removed": 3, "bytes": 2000000, "dropped": 0}]',
       5000 + d.batch_id %% 700, 2000000 + d.batch_id %% 700 * 1000, CASE WHEN d.batch_id %% 20 = 0 THEN 7 ELSE 0 END,
       d.batch_id %% 30, d.batch_id %% 40 * 100,
       ARRAY['FileStreamSource[s3a://landing/feed]: {"logOffset": ' || d.batch_id || '}']
FROM sluice.delivery d WHERE d.pipeline = %(name)s;

INSERT INTO sluice.delivery_input (delivery_id, pipeline, path, uri, size, mtime_ms, source)
SELECT d.delivery_id, d.pipeline, d.batch_id || '/' || f, 's3a://landing/feed/' || d.batch_id || '/' || f || '.jsonl', 12345, 1700000000000, 0
FROM sluice.delivery d, generate_series(1, 3) AS f WHERE d.pipeline = %(name)s;

INSERT INTO sluice.delivery_range (delivery_id, pipeline, source, topic, topic_id, partition, start_offset, end_offset)
SELECT d.delivery_id, d.pipeline, 0, 'clicks', 'id-of-' || d.pipeline, f, d.batch_id * 1000 + 1, d.batch_id * 1000 + 1001
FROM sluice.delivery d, generate_series(0, 1) AS f WHERE d.pipeline = %(name)s;

INSERT INTO sluice.delivery_file (delivery_id, kind, path, rows, bytes)
SELECT d.delivery_id, 'data', 's3://lake/warehouse/feed/data/stream=x/batch=' || d.batch_id || '/' || f || '.parquet', 500, 23456
FROM sluice.delivery d, generate_series(1, 2) AS f WHERE d.pipeline = %(name)s;

INSERT INTO sluice.quarantine (pipeline, delivery_id, stream_id, batch_id, reasons, source_path, row, status)
SELECT d.pipeline, d.delivery_id, d.stream_id, d.batch_id,
       ARRAY['rule ' || (1 + d.batch_id %% 2) || ' about a column of the feed', 'rule 4 about a column of the feed'],
       's3a://landing/feed/' || d.batch_id || '/1.jsonl',
       (SELECT jsonb_object_agg('c' || k, d.batch_id * k) FROM generate_series(0, 19) AS k)::text,
       CASE WHEN d.batch_id %% 30 = 0 THEN 'discarded' ELSE 'held' END
FROM sluice.delivery d, generate_series(1, 5) WHERE d.pipeline = %(name)s AND d.quarantined > 0
ORDER BY d.delivery_id;
