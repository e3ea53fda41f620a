"""An example of an Airflow DAG downstream: new deliveries of `flights` start it, and it reads exactly those.

What is new it asks the ledger, by the order of commits: all that came after the place up to which the last run that
succeeded has read. The place is in the event of its own asset, which Airflow makes with the success of a run and not
before. An event of `flights` says when to look, not what to read: Airflow drops events while a run is under way
(apache/airflow#56050), and while the DAG is paused. Each hour it looks without one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, AssetOrTimeSchedule, CronTriggerTimetable, Param, dag, task

from etl.airflow.operator import assets
from etl.common.settings import load_settings
from etl.pipeline import loadable
from etl.pipeline.ddl import ddl_columns
from etl.pipeline.loader import file_of

UPSTREAM = "flights"
READ = {"carrier", "dep_delay"}  # columns
TABLE, LAKE = assets(UPSTREAM)
DELAYS = Asset(name="delays of flights by carrier", uri="x-sluice://flights_delays", group="sluice")
HOURLY = CronTriggerTimetable("0 * * * *", timezone="UTC")
AFTER = Param(
    None,
    type=["null", "integer"],
    minimum=0,
    title="Read anew from",
    description="All after this commit of flights, 0 for all that there is, instead of what is new",
)


@dag(
    schedule=AssetOrTimeSchedule(timetable=HOURLY, assets=(TABLE & LAKE)),
    start_date=dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    params={"after": AFTER},
    default_args={
        "retries": 3,
        "retry_delay": dt.timedelta(minutes=1),
        "retry_exponential_backoff": 2.0,
    },
    tags=["sluice", "example"],
    doc_md=__doc__,
)
def flights_delays() -> None:
    @task(inlets=[DELAYS], outlets=[DELAYS])
    def by_carrier(
        params: Any = None, dag_run: Any = None, inlet_events: Any = None, outlet_events: Any = None
    ) -> list[dict[str, Any]]:
        """Flights and mean departure delay by carrier, of the deliveries that are new.

        `replaced` in its event names deliveries that were read before and are no longer in force: what took their place
        is among the new ones, and what was made of them is to be taken back.
        """
        from etl import delivered

        kept, cleared, after = place(inlet_events), again(inlet_events, dag_run), params["after"]
        new = delivered(UPSTREAM, **(cleared or {"after": kept if after is None else after}))
        outlet_events[DELAYS].extra.update(asdict(new), place=kept if cleared else new.to)
        return mean_delays(new.deliveries) if new.deliveries else []

    by_carrier()


def place(events: Any) -> int:
    """Return the commit up to which the runs that succeeded have read; 0: none has. A cleared run does not move it."""
    told = [event for event in events[DELAYS].ascending(False).limit(20) if "place" in (event.extra or {})]
    return max(told, key=lambda event: event.id).extra["place"] if told else 0


def again(events: Any, dag_run: Any) -> dict[str, int] | None:
    """Return what this very run had read before it was cleared: that is read again, and nothing else."""
    since = events[DELAYS].after(dag_run.run_after)
    told = [event for event in since if event.source_run_id == dag_run.run_id]
    return {name: told[0].extra[name] for name in ("after", "to")} if told else None


def mean_delays(deliveries: Sequence[int]) -> list[dict[str, Any]]:
    """Read from the lake with Spark, in this task's own process."""
    from pyspark.sql import functions as F

    import etl

    spark = etl.session()
    try:
        found = etl.read(spark, UPSTREAM, deliveries=deliveries, skip_replaced=True)
        delays = found.groupBy("carrier").agg(
            F.count("*").alias("flights"), F.mean("dep_delay").alias("delay")
        )
        return [row.asDict() for row in delays.orderBy("carrier").collect()]
    finally:
        spark.stop()


def is_declared(folders: Sequence[Path]) -> bool:
    """Tell whether there is a pipeline of that name with the columns that are read, or one with a mistake.

    Airflow takes a DAG that its file no longer makes for gone.
    """
    if declared := loadable(folders).get(UPSTREAM):
        return set(ddl_columns(declared.schema)) >= READ
    return file_of(UPSTREAM, folders) is not None


if is_declared(load_settings().pipelines):
    flights_delays()
