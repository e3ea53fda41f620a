"""Airflow's entry point: creates each pipeline's pool before its tasks are scheduled.

A task whose pool is missing would stay scheduled for ever, without a word.
"""

from __future__ import annotations

from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

PREFIX = "sluice_"


class Pools:
    """Listens in the scheduler."""

    @hookimpl
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None:  # noqa: ARG002 - the hook's own signature
        """One slot for each pool of ours that the DAG names; one that exists stays as somebody set it."""
        for name in {task.pool for task in dag_run.get_dag().tasks}:
            if name.startswith(PREFIX):
                create_pool(name)


def create_pool(name: str) -> None:
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    # Not the scheduler's own session: it is in the middle of a transaction.
    with create_session(scoped=False) as session:
        if Pool.get_pool(name, session=session) is None:
            Pool.create_or_update_pool(
                name,
                slots=1,
                description="Sluice: one run of the pipeline at a time",
                include_deferred=True,
                session=session,
            )


class SluicePlugin(AirflowPlugin):
    name = "sluice"
    listeners = [Pools()]  # noqa: RUF012 - Airflow reads the attribute
