"""Executes an operator without an Airflow, as the only try of a run that somebody triggered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def execute(operator: Any, pushed: dict[str, Any] | None = None) -> Any:
    """Execute an operator and return its result; `pushed` gets its XComs."""
    xcoms = {} if pushed is None else pushed
    ti = SimpleNamespace(
        dag_id="events",
        run_id="manual",
        task_id=operator.task_id,
        try_number=1,
        max_tries=0,
        task=SimpleNamespace(retries=0),
        xcom_push=lambda key, value: xcoms.update({key: value}),
    )
    dag_run = SimpleNamespace(
        data_interval_start=None,
        data_interval_end=None,
        run_type="manual",
        clear_number=0,
        triggering_user_name=None,
    )
    return operator.execute({"ti": ti, "dag_run": dag_run})
