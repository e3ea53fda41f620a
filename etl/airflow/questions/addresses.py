"""Addresses of pages of Airflow's own, made without Airflow: light to import."""

from __future__ import annotations

from urllib.parse import quote


def question_address(airflow: str, dag_id: str, run_id: str, task_id: str) -> str:
    """Return the address at which a person answers what a task asks, of the Airflow at that address."""
    dag, run, task = (quote(part, safe="") for part in (dag_id, run_id, task_id))
    return f"{airflow.rstrip('/')}/dags/{dag}/runs/{run}/tasks/{task}/required_actions"
