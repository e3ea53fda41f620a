"""An example of an Airflow DAG downstream: it keeps a table of the delays by carrier, in which each flight of `flights`
counts once.

What is new it asks the ledger, as consumer `flights_delays`: rows that came since its place, and rows that left, as by a
replay. Its place moves in the transaction that changes its table. So a run that failed, was tried again, was cleared or was
lost makes no difference, and neither do events of `flights` that Airflow drops: while a run is under way
(apache/airflow#56050), and while the DAG is paused. An event says when to look; each hour it looks without one.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetOrTimeSchedule, CronTriggerTimetable, Param, dag, task

from etl.airflow.connections import settings_here
from etl.airflow.operator import assets
from etl.airflow.project import use_own_settings
from etl.common.settings import load_settings
from etl.pipeline import loadable
from etl.pipeline.ddl import ddl_columns
from etl.pipeline.loader import file_of

if TYPE_CHECKING:
    from etl.operations.serving.changes import Changes

UPSTREAM, CONSUMER = "flights", "flights_delays"
READ = {"carrier", "dep_delay"}  # columns
TABLE, LAKE = assets(UPSTREAM)
DELAYS = Asset(name="delays of flights by carrier", uri="x-sluice://flights_delays", group="sluice")
HOURLY = CronTriggerTimetable("0 * * * *", timezone="UTC")
ANEW = Param(
    False, type="boolean", title="Make the table anew", description="Of all that flights has delivered"
)
MAKE = """
CREATE TABLE IF NOT EXISTS warehouse.flights_delays
    (carrier text PRIMARY KEY, flights bigint NOT NULL, departed bigint NOT NULL, minutes bigint NOT NULL)
"""
EMPTY = "DELETE FROM warehouse.flights_delays"
ADD = """
INSERT INTO warehouse.flights_delays AS d VALUES (%(carrier)s, %(flights)s, %(departed)s, %(minutes)s)
ON CONFLICT (carrier) DO UPDATE SET flights = d.flights + excluded.flights, departed = d.departed + excluded.departed,
    minutes = d.minutes + excluded.minutes
"""


@dag(
    schedule=AssetOrTimeSchedule(timetable=HOURLY, assets=(TABLE & LAKE)),
    start_date=dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    params={"anew": ANEW},
    default_args={
        "retries": 3,
        "retry_delay": dt.timedelta(minutes=1),
        "retry_exponential_backoff": 2.0,
    },
    tags=["sluice", "example"],
    doc_md=__doc__,
)
def flights_delays() -> None:
    @task(outlets=[DELAYS])
    def by_carrier(params: Any = None) -> dict[str, list[int]]:
        """Bring the table up to date; return the deliveries whose rows came, and those whose rows left."""
        from etl import changes

        anew, here = params["anew"], settings_here()
        with changes(None, UPSTREAM, consumer=CONSUMER, after=0 if anew else None, settings=here) as new:
            if new or anew:
                found = sums(new) if new else []
                with new.transaction() as cursor:
                    cursor.execute(MAKE)
                    if anew:
                        cursor.execute(EMPTY)
                    cursor.executemany(ADD, found)
        return {"deliveries": new.deliveries, "replaced": new.replaced}

    by_carrier()


def sums(new: Changes) -> list[dict[str, Any]]:
    """Return by carrier how many flights came less those that left, how many of them departed, and their delays.

    They are read from the lake with Spark, in this task's own process.
    """
    from pyspark.sql import functions as F

    import etl

    spark = etl.session()
    try:
        sign = F.when(F.col("_change") == "delete", -1).otherwise(1)
        found = (
            new.read(spark)
            .groupBy("carrier")
            .agg(
                F.sum(sign).alias("flights"),
                F.sum(F.when(F.col("dep_delay").isNotNull(), sign).otherwise(0)).alias("departed"),
                F.coalesce(F.sum(sign * F.col("dep_delay").cast("long")), F.lit(0)).alias("minutes"),
            )
        )
        return [row.asDict() for row in found.collect()]
    finally:
        spark.stop()


def is_declared(folders: Sequence[Path]) -> bool:
    """Tell whether there is a pipeline of that name with the columns that are read, or one with a mistake.

    Airflow takes a DAG that its file no longer makes for gone. Where Airflow's environment has no Spark, its task can't run.
    """
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        return False
    if declared := loadable(folders).get(UPSTREAM):
        return set(ddl_columns(declared.schema)) >= READ
    return file_of(UPSTREAM, folders) is not None


use_own_settings(__file__)
if is_declared(load_settings().pipelines):
    flights_delays()
