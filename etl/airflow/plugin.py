"""Airflow's entry point: creates each pipeline's pool before its tasks are scheduled, and shows the Data quality pages.

A task whose pool is missing would stay scheduled for ever, without a message.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from etl.airflow.deadlines import FirstQueued
from etl.airflow.links import PAGES, QualityLink, place_of
from etl.pipeline.dag_names import POOLS


class Pools:
    """A listener in the scheduler that creates pools."""

    @hookimpl
    def on_dag_run_running(self, dag_run: Any, msg: str) -> None:  # noqa: ARG002 - the hook's own signature
        """Create each pool of ours that the DAG names, with one slot; one that exists stays as it is set."""
        for name in {task.pool for task in dag_run.get_dag().tasks}:
            if name.startswith(POOLS):
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
                description="Sluice: one run of the DAG at a time",
                include_deferred=True,
                session=session,
            )


class Pages:
    """The Data quality pages, built at their first request: every process of Airflow loads this plugin."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await _pages()(scope, receive, send)


@cache
def _pages() -> Any:
    from etl.airflow.pages.app import build

    return build()


def view(destination: str, href: str) -> dict[str, str]:
    return {
        "name": "Data quality",
        "destination": destination,
        "href": place_of() + href,
        "url_route": f"data-quality-{destination}".replace("_", "-"),
    }


class SluicePlugin(AirflowPlugin):
    """The plugin, whose attributes Airflow reads."""

    name = "sluice"
    listeners = [Pools()]  # noqa: RUF012
    fastapi_apps = [{"app": Pages(), "url_prefix": PAGES, "name": "Sluice: data quality"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        view("nav", "/") | {"category": "browse"},
        view("dag", "/{DAG_ID}/"),
        view("dag_run", "/{DAG_ID}/run?run_id={RUN_ID}"),
        view("task", "/{DAG_ID}/"),
        view("task_instance", "/{DAG_ID}/run?run_id={RUN_ID}&task_id={TASK_ID}"),
    ]
    deadline_references = [FirstQueued]  # noqa: RUF012
    operator_extra_links = [QualityLink()]  # noqa: RUF012
