-- name: ended_try
-- How a try of an Airflow task ended.
SELECT outcome, message, remedy FROM sluice.airflow_try
WHERE dag_id = %(dag_id)s AND dag_run_id = %(dag_run_id)s AND task_id = %(task_id)s AND try_number = %(try_number)s
