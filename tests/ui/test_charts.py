"""What is written beside a chart: the newest value as it is, and nothing where there is none."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from etl.airflow.pages import charts, formatting
from etl.airflow.pages.heatmap import heatmap
from etl.airflow.pages.records import BatchRow, new_streams


@dataclass(frozen=True)
class At:
    committed_at: dt.datetime


BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
HOURLY = [At(BEGIN + dt.timedelta(hours=n)) for n in range(3)]


def batches(count: int) -> list[BatchRow]:
    return [
        BatchRow(
            delivery_id=n + 1,
            stream_id="a",
            batch_id=n,
            kind="stream",
            commit_seq=n + 1,
            committed_at=BEGIN + dt.timedelta(hours=n),
            live=True,
            rows_in=10,
            delivered=10,
            quarantined=0,
            malformed=0,
            records=None,
            dropped=0,
            suite_digest="d",
            state="good",
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


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), None])
def test_where_no_value_is_finite_nothing_is_drawn_and_that_is_said(value: float | None) -> None:
    told = {None: "–"}.get(value, formatting.number(value))
    for drawn in (
        charts.lines("Mean", HOURLY, {"mean": [None, value, value]}),
        charts.amounts("Mean", HOURLY, [None, value, value], formatting.number),
    ):
        assert (drawn.series, drawn.top, drawn.bottom) == ((), "no finite value", "")
        assert drawn.last == told
        assert drawn.summary == f"Mean: 3 batches, no finite value, last {told}"


def test_a_value_that_is_always_the_same_is_no_range() -> None:
    drawn = charts.lines("Mean", HOURLY, {"mean": [-5.0, -5.0, None]})
    assert (drawn.top, drawn.bottom) == ("-5 throughout", "")
    assert " 48.0h" in drawn.series[0].path
    drawn = charts.lines("Mean", HOURLY, {"mean": [-5.0, float("inf"), 5.0]})
    assert (drawn.top, drawn.bottom, drawn.last) == ("5", "-5", "5")


def drawn_at(chart: charts.Chart) -> list[tuple[float, float]]:
    """Return the left and the right edge of each bar."""
    found = re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", chart.series[0].path)
    return [(float(left), float(left) + float(wide)) for left, wide in found]


def hours(*after: float) -> list[At]:
    return [At(BEGIN + dt.timedelta(hours=one)) for one in after]


def test_a_batch_stands_at_its_moment_and_the_dates_are_those_of_the_edges_and_the_middle() -> None:
    moments = hours(0, 1, 2, 96)
    drawn = charts.amounts("Rows", moments, [5.0] * 4, formatting.number)
    middles = [(left + right) / 2 for left, right in drawn_at(drawn)]
    first, last = charts.WIDEST / 2, charts.WIDTH - charts.WIDEST / 2
    hour = (last - first) / 96
    assert middles == pytest.approx([first, first + hour, first + 2 * hour, last], abs=0.15)
    assert drawn.dates == ("01 Jan 00:00", "03 Jan 00:00", "05 Jan 00:00")
    line = charts.lines("Mean", moments, {"mean": [1.0, 2.0, None, 4.0]})
    ends = re.findall(r"[ML]([\d.]+) [\d.]+h([\d.]+)", line.series[0].path)
    assert [float(left) + float(wide) / 2 for left, wide in ends] == pytest.approx(
        [middles[0], middles[1], middles[3]], abs=0.15
    )
    assert line.dates == drawn.dates


@pytest.mark.parametrize(
    "moments",
    [
        hours(*[0] * charts.BATCHES),
        hours(0, *[24.0] * (charts.BATCHES - 1)),
        hours(*[0] * 100, 24, 24, 48),
        hours(*[0.001 * n for n in range(charts.BATCHES - 1)], 900),
        hours(0, 5, 4.999, 6),  # a transaction that began before, and was committed after
        hours(0),
    ],
)
def test_no_batch_hides_another_and_none_is_outside(moments: list[At]) -> None:
    bars = drawn_at(charts.amounts("Rows", moments, [5.0] * len(moments), formatting.number))
    assert len(bars) == len(moments)
    assert all(0 <= left < right <= charts.WIDTH for left, right in bars)
    assert all(right <= left + 0.15 for (_, right), (left, _) in pairwise(bars))


def test_a_chart_of_one_moment_has_one_date_and_one_of_nothing_none() -> None:
    for moments, dates in ((hours(0, 0), ("01 Jan 00:00",)), ([], ())):
        assert charts.amounts("Rows", moments, [1.0] * len(moments), formatting.number).dates == dates


def test_a_new_stream_is_marked_and_a_replay_is_none() -> None:
    rows = batches(5)
    assert new_streams(rows) == frozenset()
    rows[2] = replace(rows[2], stream_id="of the replay", kind="replay")
    rows[3:] = [replace(one, stream_id="b") for one in rows[3:]]
    assert new_streams(rows) == {4}
    drawn = charts.volume(rows)
    [mark] = re.findall(r"M([\d.]+) 0V96", drawn.marks)
    bars = drawn_at(drawn)
    assert bars[2][1] < float(mark) < bars[3][0]
    assert charts.volume(rows[3:]).marks == ""
    shown = heatmap(rows[::-1], [])
    assert shown.begun == {4}
