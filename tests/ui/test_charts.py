"""What is written beside a chart: the newest value as it is, and nothing where there is none."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pytest

from etl.airflow.pages import charts, formatting
from etl.airflow.pages.records import BatchRow


@dataclass(frozen=True)
class At:
    committed_at: dt.datetime


BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HOURLY = [At(BEGIN + dt.timedelta(hours=n)) for n in range(3)]


def batches(count: int) -> list[BatchRow]:
    return [
        BatchRow(
            delivery_id=n + 1,
            batch_id=n,
            kind="stream",
            commit_seq=n + 1,
            committed_at=BEGIN + dt.timedelta(hours=n),
            live=True,
            rows_in=10,
            delivered=10,
            quarantined=0,
            malformed=0,
            dropped=0,
            suite_digest="d",
            state="good",
            success=True,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("values", "last"),
    [([60.0, 120.0, None], "–"), ([None, None, 0.0], "0 s"), ([None, 9.0, -7200.0], "-2 h")],
)
def test_the_newest_value_is_told_though_another_is_drawn_in_its_place(
    values: list[float | None], last: str
) -> None:
    drawn = charts.amounts("Age", HOURLY, values, formatting.seconds)
    assert drawn.last == last
    assert drawn.summary.endswith(f"last {last}")


@pytest.mark.parametrize(("count", "last"), [(0, "–"), (1, "–"), (2, "1 h")])
def test_the_first_batch_has_none_before_it(count: int, last: str) -> None:
    assert charts.gaps(batches(count)).last == last


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-2_592_000, "-30 d"),
        (-90, "-1 min"),
        (-3, "-3 s"),
        (-0.2, "0 s"),
        (0, "0 s"),
        (59, "59 s"),
        (90, "1 min"),
    ],
)
def test_seconds_before_are_written_as_those_after(value: float, text: str) -> None:
    assert formatting.seconds(value) == text
