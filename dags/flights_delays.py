"""An example of an Airflow DAG downstream: started by new deliveries of `flights`, it reads exactly those.

An asset event names every delivery since the last event, those of runs that failed in the middle included, so
nothing is read twice and nothing is left out.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowSkipException

from etl.airflow.operator import assets

TABLE, LAKE = assets("flights")


@dag(
    schedule=(TABLE & LAKE),
    start_date=dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    tags=["sluice", "example"],
    doc_md=__doc__,
)
def flights_delays() -> None:
    @task
    def by_carrier(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """Flights and mean departure delay by carrier, of the deliveries that are new."""
        events = triggering_asset_events[LAKE]
        deliveries = {delivery for event in events for delivery in event.extra["deliveries"]}
        if not deliveries:
            raise AirflowSkipException("the run delivered nothing new")
        return mean_delays(deliveries)

    by_carrier()


def mean_delays(deliveries: set[int]) -> list[dict[str, Any]]:
    """Read from the lake with Spark, in this task's own process."""
    from pyspark.sql import functions as F

    import etl

    spark = etl.session()
    try:
        found = etl.read(spark, "flights", deliveries=deliveries, skip_replaced=True)
        delays = found.groupBy("carrier").agg(
            F.count("*").alias("flights"), F.mean("dep_delay").alias("delay")
        )
        return [row.asDict() for row in delays.orderBy("carrier").collect()]
    finally:
        spark.stop()


flights_delays()
