"""The shipped pipelines with state over real flights, against the same figures by pandas."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
import pytest

from etl.operations.datasets.flights import land_flights, parse_days
from etl.pipeline import load_pipeline
from etl.runs.run import run
from etl.runs.summary import Summary
from tests.support.catalog import open_catalog
from tests.support.data.flights import departures, packaged, rows_of
from tests.support.environment import REPOSITORY
from tests.support.home import Home

LAYOUTS = pytest.mark.parametrize(
    "max_files",
    [
        pytest.param(100, id="few large batches"),
        pytest.param(4, id="many small batches", marks=pytest.mark.slow),
    ],
)
DAYS = "2013-01-01..2013-01-07", "2013-01-08..2013-01-09"
STORM = "2013-02-08..2013-02-12", "2013-02-13..2013-02-17"


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Return the flights that are landed here, as the package has them."""
    rows = from_package("flights.csv.zip")
    rows = rows[(rows.month == 1) & (rows.day <= 9)]
    departure = departures(rows)
    return rows.assign(hour_utc=departure.dt.floor("h"), departure=departure)


def from_package(name: str) -> pd.DataFrame:
    """Return each number as Spark reads it."""
    return packaged(name, float_precision="round_trip")


def in_two_runs(
    shipped: Home, name: str, max_files: int, *, days: tuple[str, str] = DAYS, late: int = 0
) -> Iterator[Summary]:
    """Run twice, each time over the days that have landed by then; with the second run `late` flights come once more."""
    declared = load_pipeline(name, shipped.place.settings.pipelines)
    sources = tuple(replace(files, max_files=max_files) for files in declared.sources)
    pipeline = replace(declared, sources=sources)
    for landed in days:
        if late and landed == days[-1]:
            [flown] = (shipped.landing / "flights" / "dt=2013-01-03").glob("*.jsonl")
            shipped.write("flights/dt=2013-01-03/late.jsonl", "".join(flown.open().readlines()[:late]))
        land_flights(shipped.place.settings, parse_days(landed))
        yield run(shipped.place, pipeline, spark=shipped.spark)
    shipped.assert_clean(name)


@LAYOUTS
def test_departures_per_hour(shipped: Home, flights: pd.DataFrame, max_files: int) -> None:
    runs = in_two_runs(shipped, "departures_per_hour", max_files, late=7)
    assert [summary.quarantined for summary in runs] == [0, 7]
    assert shipped.ask("SELECT DISTINCT reasons FROM sluice.quarantine") == [(["late"],)]
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
    assert current_on_the_lake(shipped, "departures_per_hour") == len(found)


def current_on_the_lake(shipped: Home, name: str) -> int:
    """Count the rows that the documented query finds; PostgreSQL has each of them as well."""
    table = open_catalog(shipped.place).load_table(f"warehouse.{name}")
    query = (REPOSITORY / "docs" / "state.md").read_text().partition('changes.sql("""')[2].partition('"""')[0]
    current = table.scan().to_duckdb("changes").sql(query).project("hour, origin, scheduled, _delivery_id")
    rows = Counter(current.fetchall())
    assert rows == Counter(shipped.ask(f"SELECT hour, origin, scheduled, _delivery_id FROM warehouse.{name}"))
    return rows.total()


IMPOSSIBLE = {
    "year": 2013,
    "month": 13,
    "day": 1,
    "hour": 24,
    "minute": 0,
    "time_hour": "2013-01-03T10:00:00Z",
}
IMPOSSIBLE |= {
    "origin": "EWR",
    "carrier": "UA",
    "dest": "ORD",
    "flight": 1,
    "tailnum": "N14228",
    "distance": 719,
}
IMPOSSIBLE |= {"sched_dep_time": 500, "sched_arr_time": 700}


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("flights", ["scheduled departure is derived"]),
        pytest.param("fleet", ["the last departure is given"], marks=pytest.mark.slow),
        ("departures_per_hour", []),
        pytest.param("flights_weather", [], marks=pytest.mark.slow),
        pytest.param("quiet_hours", [], marks=pytest.mark.slow),
    ],
)
def test_a_date_that_is_none_stops_no_pipeline(shipped: Home, name: str, reasons: list[str]) -> None:
    """It is held, or its record goes by the hour that the feed tells."""
    land_flights(shipped.place.settings, parse_days("2013-01-03..2013-01-03"))
    shipped.write("flights/dt=2013-01-03/impossible.jsonl", json.dumps(IMPOSSIBLE) + "\n")
    summary = run(shipped.place, load_pipeline(name, shipped.place.settings.pipelines), spark=shipped.spark)
    assert summary.reasons == dict.fromkeys(reasons, 1)
    shipped.assert_clean(name)
    if name == "departures_per_hour":
        [(counted,)] = shipped.ask("SELECT sum(scheduled) FROM warehouse.departures_per_hour")
        [(there,)] = shipped.ask("SELECT sum(records) FROM sluice.delivery")
        assert counted == there


@LAYOUTS
def test_fleet(shipped: Home, flights: pd.DataFrame, max_files: int) -> None:
    assert [summary.quarantined for summary in in_two_runs(shipped, "fleet", max_files)] == [0, 0]
    last = flights.dropna(subset="tailnum").sort_values("departure").groupby("tailnum").tail(1)
    planes = from_package("planes.csv")[["tailnum", "manufacturer", "seats"]]
    wanted = last.merge(planes, on="tailnum", how="left")[
        ["tailnum", "dest", "departure", "manufacturer", "seats"]
    ]
    query = "SELECT tailnum, last_dest, last_departure, manufacturer, seats FROM warehouse.fleet"
    assert Counter(shipped.ask(query)) == rows_of(wanted)
    assert len(wanted) > 2000


@pytest.mark.slow
@LAYOUTS
def test_flights_weather(shipped: Home, flights: pd.DataFrame, max_files: int) -> None:
    """A flight without a measurement comes when the watermark, three days behind, has passed its hour."""
    runs = in_two_runs(shipped, "flights_weather", max_files, late=7)
    assert [summary.quarantined for summary in runs] == [0, 7]
    weather = from_package("weather.csv")[["origin", "time_hour", "temp", "wind_speed"]]
    columns = ["departure", "carrier", "flight", "origin", "temp", "wind_speed", "measured"]
    both = flights.merge(weather.assign(measured=weather.time_hour), on=["origin", "time_hour"], how="left")
    wanted = rows_of(both.assign(measured=pd.to_datetime(both.measured))[columns])
    query = (
        "SELECT departure, carrier, flight, origin, temp, wind_speed, measured FROM warehouse.flights_weather"
    )
    found = Counter(shipped.ask(query))
    assert found - wanted == Counter()
    over = flights.departure.max() - pd.Timedelta(days=3, hours=1)
    missing = wanted - found
    assert all(row[-1] is None and row[0] > over for row in missing)
    assert any(row[-1] is None for row in found)


@pytest.mark.slow
@LAYOUTS
def test_quiet_hours(shipped: Home, max_files: int) -> None:
    """In one of them the wind can't be, with 1,048 miles an hour: it is held."""
    runs = in_two_runs(shipped, "quiet_hours", max_files, days=STORM)
    assert sum(summary.quarantined for summary in runs) == 1
    assert shipped.ask("SELECT reasons, status FROM sluice.quarantine") == [
        (["the wind is plausible"], "held")
    ]
    first, last = STORM[0][:10], STORM[1][-10:]
    flights, weather = (
        rows[pd.to_datetime(rows[["year", "month", "day"]]).between(first, last)]
        for rows in (from_package("flights.csv.zip"), from_package("weather.csv"))
    )
    busy = weather.merge(flights[["origin", "time_hour"]].drop_duplicates(), how="left", indicator=True)
    quiet = busy[(busy._merge == "left_only") & (busy.wind_speed < 1000)]
    wanted = rows_of(
        quiet.assign(hour=pd.to_datetime(quiet.time_hour))[["hour", "origin", "temp", "wind_speed"]]
    )
    found = Counter(shipped.ask("SELECT hour, origin, temp, wind_speed FROM warehouse.quiet_hours"))
    assert found - wanted == Counter()
    over = pd.Timestamp(flights.time_hour.max()) - pd.Timedelta(days=3, hours=1)
    assert all(row[0] > over for row in wanted - found)
    assert len(found) > 50


@LAYOUTS
def test_delays_by_carrier(shipped: Home, flights: pd.DataFrame, max_files: int) -> None:
    assert [summary.quarantined for summary in in_two_runs(shipped, "delays_by_carrier", max_files)] == [0, 0]
    wanted = []
    for keys in (["carrier", "origin"], ["carrier"], []):
        groups = flights.groupby(keys) if keys else [((), flights)]
        for key, rows in groups:
            names = [*key, *["all"] * (2 - len(key))]
            wanted.append((*names, len(rows), int(rows.dep_delay.count()), int(rows.dep_delay.sum())))
    query = "SELECT carrier, origin, flights, departed, minutes_late FROM warehouse.delays_by_carrier"
    assert sorted(shipped.ask(query)) == sorted(wanted)


def test_a_carrier_that_is_not_given_is_no_total(shipped: Home) -> None:
    land_flights(shipped.place.settings, parse_days("2013-01-03..2013-01-03"))
    nameless = {name: value for name, value in IMPOSSIBLE.items() if name != "carrier"}
    shipped.write("flights/dt=2013-01-03/nameless.jsonl", json.dumps(nameless) + "\n")
    pipeline = load_pipeline("delays_by_carrier", shipped.place.settings.pipelines)
    summary = run(shipped.place, replace(pipeline, max_quarantine_share=0.2), spark=shipped.spark)
    assert summary.reasons == {"carrier is given": 2}, "one sum of its airport and one of all"
    totals = "SELECT carrier = 'all', sum(flights) FROM warehouse.delays_by_carrier WHERE origin = 'all' GROUP BY 1"
    told = dict(shipped.ask(totals))
    assert told[True] == told[False] + 1
