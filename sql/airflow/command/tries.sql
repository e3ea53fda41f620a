-- name: begin_airflow_try
-- Records that a try of an Airflow task has begun; the same try that begins again, after its worker died, is one.
INSERT INTO sluice.airflow_try
    (dag_id, dag_run_id, task_id, try_number, pipeline, run_type, clear_number, interval_start, interval_end)
VALUES (%(dag_id)s, %(dag_run_id)s, %(task_id)s, %(try_number)s, %(pipeline)s, %(run_type)s, %(clear_number)s,
        %(interval_start)s, %(interval_end)s)
ON CONFLICT (dag_id, dag_run_id, task_id, try_number) DO UPDATE
SET started_at = now(), ended_at = NULL, outcome = NULL, message = NULL, remedy = NULL, run_id = NULL, told_to = NULL

-- name: airflow_try_runs
-- Names the run that an Airflow try has become.
UPDATE sluice.airflow_try SET run_id = %(run)s
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s AND try_number = %(try_number)s

-- name: end_airflow_try
-- Records how an Airflow try ended.
UPDATE sluice.airflow_try SET ended_at = now(), outcome = %(outcome)s, message = %(message)s, remedy = %(remedy)s
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s AND try_number = %(try_number)s

-- name: told_to
-- The commit up to which deliveries have been told of: by the newest asset event, if that commit still is the delivery which
-- the event tells of last, or was put back since under its number; of an event that does not say which delivery that is, if
-- the ledger has so many commits. Where there is no such event, or PostgreSQL went back in time since, by the tries that
-- ended well, other than those that Airflow tried again. Runs of the DAG for replays tell of their own, and other runs of
-- all others.
SELECT CASE
    WHEN %(delivery)s::bigint IS NULL
     AND %(event)s::bigint <= (SELECT max(commit_seq) FROM sluice.delivery WHERE pipeline = %(pipeline)s) THEN %(event)s
    WHEN EXISTS (
        SELECT FROM sluice.delivery d JOIN sluice.attempt a USING (delivery_id)
        WHERE d.pipeline = %(pipeline)s AND (d.commit_seq, d.delivery_id) = (%(event)s, %(delivery)s)
          AND (d.run_id::text = %(run)s OR a.adopted)) THEN %(event)s
    ELSE coalesce((
        SELECT t.told_to FROM sluice.airflow_try t
        WHERE t.pipeline = %(pipeline)s AND (t.dag_id = %(replays)s) = (%(dag_id)s = %(replays)s)
          AND t.outcome = 'done' AND t.told_to IS NOT NULL AND NOT EXISTS (
            SELECT FROM sluice.airflow_try again
            WHERE (again.dag_id, again.dag_run_id, again.task_id, again.clear_number)
                = (t.dag_id, t.dag_run_id, t.task_id, t.clear_number) AND again.try_number > t.try_number)
        ORDER BY t.told_to DESC LIMIT 1), 0)
END

-- name: unreported
-- Deliveries after those that have been told of, in commit order, and whose place each took: live ones, and such as were
-- replaced before anybody was told of them. Runs of the DAG for replays tell of their own, and other runs of all others:
-- within each of both they end one after the other. Where what was replaced is of the others, who may not have told of
-- it, so is what that had replaced itself.
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
WHERE mine AND commit_seq > %(told_to)s
ORDER BY commit_seq

-- name: delivery_of_commit
-- The delivery that a commit of the pipeline made, and its run; no row for 0.
SELECT delivery_id, run_id::text FROM sluice.delivery WHERE pipeline = %(pipeline)s AND commit_seq = %(commit_seq)s

-- name: airflow_try_tells
-- Records how far a try tells, should it end well.
UPDATE sluice.airflow_try SET told_to = %(told_to)s
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s AND try_number = %(try_number)s

-- name: replayed_before
-- The run by which an earlier try of a task, since it or its DAG run was last cleared, has replayed what was asked for.
SELECT t.run_id::text FROM sluice.airflow_try t JOIN sluice.delivery d ON d.run_id = t.run_id
WHERE t.dag_id = %(dag_id)s AND t.dag_run_id = %(dag_run_id)s AND t.task_id = %(task_id)s
  AND t.clear_number = %(clear_number)s AND t.try_number > %(tries_before_clear)s
  AND t.try_number < %(try_number)s AND d.kind = 'replay' LIMIT 1

-- name: delivered_by_run
-- What all tries of a task in a DAG run delivered.
SELECT delivery_id FROM sluice.airflow_delivery
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s

-- name: runs_before_clear
-- The runs of this task in this DAG run before either was last cleared, and how each try ended; in their order.
SELECT run_id::text, outcome FROM sluice.airflow_try
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s
  AND (clear_number < %(clear_number)s OR try_number <= %(tries_before_clear)s) ORDER BY try_number
