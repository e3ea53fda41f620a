"""Flights through the shipped pipeline, row by row against the same by pandas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from etl.operations.datasets.flights import land_flights, parse_days
from etl.pipeline import load_pipeline
from etl.runs.run import run
from tests.support.catalog import open_catalog
from tests.support.data.flights import departures, held_flights, packaged, rows_of
from tests.support.home import Home
from tests.support.oracle import Rows, difference

NAME = "flights"
LOOKED_UP = {
    "airlines": {"carrier": "carrier", "name": "airline"},
    "airports": {"faa": "dest", "name": "dest_name"},
    "planes": {"tailnum": "tailnum", "year": "plane_year", "manufacturer": "manufacturer", "seats": "seats"},
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("days", "batches"),
    [
        pytest.param("2013-01-01..2013-01-31", 2, id="January"),
        pytest.param("2013-01-01..2013-12-31", 12, id="the year", marks=pytest.mark.slow),
    ],
)
def test_each_flight_is_delivered_or_held_in_both_sinks(shipped: Home, days: str, batches: int) -> None:
    landing = parse_days(days)
    landed = land_flights(shipped.place.settings, landing)
    pipeline = load_pipeline(NAME, shipped.place.settings.pipelines)
    summary = run(shipped.place, pipeline, spark=shipped.spark)
    flights = derived()
    flights = flights[flights.month <= landing.last.month]
    held = pd.DataFrame(held_flights(flights)).any(axis=1)
    assert summary.batches >= batches
    assert (summary.delivered, summary.quarantined) == ((~held).sum(), held.sum())
    assert summary.delivered + summary.quarantined == len(flights) == landed.flights

    catalog, columns = open_catalog(shipped.place), list(flights.columns)
    delivered = rows_of(flights[~held])
    assert difference(on_lake(catalog, pipeline.table, columns), delivered) == ""
    in_postgres = shipped.ask(f"SELECT {', '.join(columns)} FROM {pipeline.table}")
    assert difference(Counter(in_postgres), delivered) == ""
    assert difference(on_lake(catalog, pipeline.quarantine_table, columns), rows_of(flights[held])) == ""
    assert shipped.ask("SELECT count(*) FROM sluice.quarantine") == [(held.sum(),)]
    shipped.assert_clean(NAME)
    assert run(shipped.place, pipeline, spark=shipped.spark).batches == 0


def derived() -> pd.DataFrame:
    """Return what the pipeline makes of the package's flights."""
    flights = packaged("flights.csv.zip")
    flights = flights.assign(
        time_hour=pd.to_datetime(flights.time_hour), scheduled_departure=departures(flights)
    )
    for name, columns in LOOKED_UP.items():
        known = packaged(f"{name}.csv")[list(columns)].rename(columns=columns)
        flights = flights.merge(known, how="left", on=next(iter(columns.values())))
    return flights


def on_lake(catalog: Catalog, table: str, columns: Sequence[str]) -> Rows:
    found: pa.Table = catalog.load_table(table).scan(selected_fields=tuple(columns)).to_arrow()
    return Counter(zip(*(found.column(name).to_pylist() for name in columns), strict=True))
