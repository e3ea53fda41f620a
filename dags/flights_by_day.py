"""An example of an Airflow DAG that reads one day: it keeps a table of flights by day, and makes anew exactly the days of
which rows of `flights` came or left.

A run of `flights` makes an event of each day that its deliveries touched, and so does a replay of each day that it
replaced: this DAG has a run for each, whose partition key is the day, in UTC. A run reads all of its day and writes it in
one transaction, so it may come twice, late, or beside another. Triggered without a key it makes all days anew, as after it
was paused: Airflow keeps no event for a paused DAG.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, PartitionedAssetTimetable, StartOfDayMapper, dag, task

from etl.airflow.connections import settings_here
from etl.airflow.operator import partitions
from etl.airflow.project import use_own_settings
from etl.common.settings import load_settings
from etl.pipeline import day, loadable
from etl.pipeline.ddl import ddl_columns
from etl.pipeline.loader import file_of

UPSTREAM = "flights"
BY_DAY = Asset(name="flights by day", uri="x-sluice://flights_by_day", group="sluice")
# Of two runs at once the second one waits here, then reads what is there by then.
ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('warehouse.flights_by_day'))"
MAKE = """
CREATE TABLE IF NOT EXISTS warehouse.flights_by_day
    (day date PRIMARY KEY, flights bigint NOT NULL, departed bigint NOT NULL, minutes bigint NOT NULL)
"""
EMPTY = "DELETE FROM warehouse.flights_by_day WHERE day = %(day)s OR %(day)s IS NULL"
FILL = """
INSERT INTO warehouse.flights_by_day
SELECT (scheduled_departure AT TIME ZONE 'UTC')::date, count(*), count(dep_delay), coalesce(sum(dep_delay), 0)
FROM warehouse.flights
WHERE scheduled_departure >= coalesce(%(start)s, '-infinity'::timestamptz)
  AND scheduled_departure < coalesce(%(end)s, 'infinity'::timestamptz)
GROUP BY 1
"""


@dag(
    schedule=PartitionedAssetTimetable(
        assets=partitions(UPSTREAM), default_partition_mapper=StartOfDayMapper()
    ),
    start_date=dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=4,
    default_args={"retries": 3, "retry_delay": dt.timedelta(minutes=1)},
    tags=["sluice", "example"],
    doc_md=__doc__,
)
def flights_by_day() -> None:
    @task(outlets=[BY_DAY])
    def sums(dag_run: Any = None) -> str | None:
        """Make the run's day anew, or all days where it has none; return the day."""
        from etl.common.database import transaction
        from etl.services import find_postgres

        start: dt.datetime | None = dag_run.partition_date  # midnight in UTC
        read = {"start": start, "end": start and start + dt.timedelta(days=1), "day": start and start.date()}
        with transaction(find_postgres(settings_here())) as cursor:
            cursor.execute(ONE_AT_A_TIME)
            cursor.execute(MAKE)
            cursor.execute(EMPTY, read)
            cursor.execute(FILL, read)
        return start.date().isoformat() if start else None

    sums()


def is_declared(folders: Sequence[Path]) -> bool:
    """Tell whether there is a pipeline of that name with the days and the column that are read, or one with a mistake.

    Airflow takes a DAG that its file no longer makes for gone.
    """
    if declared := loadable(folders).get(UPSTREAM):
        by_day = declared.sink.partition_by == day("scheduled_departure")
        return declared.names_partitions and by_day and "dep_delay" in ddl_columns(declared.schema)
    return file_of(UPSTREAM, folders) is not None


use_own_settings(__file__)
if is_declared(load_settings().pipelines):
    flights_by_day()
