"""The partitions that a run touched are named by keys that Airflow's own mappers read, each by an event."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.partition_mappers.temporal import StartOfDayMapper, StartOfHourMapper, StartOfMonthMapper
from airflow.sdk.execution_time.context import OutletEventAccessors

from etl.airflow.command.partitions import MOST, with_keys
from etl.airflow.operator import SluiceRunOperator, assets, partitions
from etl.airflow.told import unnamed_partitions
from etl.runs.summary import Summary

NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize(
    ("folder", "mapper"),
    [
        ("2013-01-02T03", StartOfHourMapper()),
        ("2013-01-02", StartOfDayMapper()),
        ("2013-01", StartOfMonthMapper()),
        ("1000-01-01", StartOfDayMapper()),
        ("9999-12-31T23", StartOfHourMapper()),
    ],
)
def test_the_key_of_an_hour_a_day_or_a_month_is_its_own_after_airflows_mapper(
    folder: str, mapper: Any
) -> None:
    [key] = with_keys([folder]).keys
    assert mapper.to_downstream(key) == folder
    assert mapper.to_partition_date(folder).isoformat() == f"{key}+00:00"


def test_what_no_mapper_reads_has_no_key_and_is_said() -> None:
    strange = ["10000-01-01", "0999-12-31", "-0001-01-01", NULL]
    found = with_keys([*strange, "2013-01-02"])
    assert (found.keys, found.beyond) == (["2013-01-02T00:00:00"], 0)
    assert sorted(found.without_key) == sorted(strange)
    summary = Summary(pipeline="p", stream="", run="", partitions_without_key=found.without_key)
    assert NULL in str(unnamed_partitions(summary))


def test_the_newest_have_keys_and_the_others_are_counted() -> None:
    found = with_keys(f"{year}-{month:02}" for year in range(1900, 2000) for month in range(1, 13))
    assert (len(found.keys), found.beyond, found.keys[0]) == (MOST, 1_200 - MOST, "1999-12-01T00:00:00")
    summary = Summary(pipeline="p", stream="", run="", partitions=found.keys, partitions_beyond=found.beyond)
    assert str(unnamed_partitions(summary)).startswith(
        f"{1_200 - MOST} partitions older than {found.keys[-1]}"
    )
    assert unnamed_partitions(Summary(pipeline="p", stream="", run="", partitions=found.keys)) is None


@pytest.mark.parametrize("keys", [["2013-01-02T00:00:00", "2013-01-01T00:00:00"], []])
def test_each_partition_has_an_event_and_a_run_that_touched_none_makes_none_without_a_key(
    keys: list[str],
) -> None:
    task = SluiceRunOperator(task_id="run", pipeline="p", outlets=[*assets("p"), partitions("p")])
    events = OutletEventAccessors()
    summary = Summary(pipeline="p", stream="s", run="r", batches=1, partitions=keys)
    context: Any = {"ti": Pushed(), "outlet_events": events}
    task._succeeded(summary, context)
    assert events[partitions("p")].partition_keys == set(keys)
    assert (partitions("p") in task.outlets) == bool(keys)
    for asset in assets("p"):
        assert events[asset].partition_keys == set(), "a key would start no DAG of plain assets"
        assert events[asset].extra["pipeline"] == "p"


class Pushed:
    def xcom_push(self, **_: Any) -> None: ...
