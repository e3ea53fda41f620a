"""How old and how much data may be goes by the day of the week, in the pipeline's own zone."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from etl.alerts.watch import unusual, used
from etl.pipeline import Airflow, Freshness, Volume
from etl.pipeline.checks import problems
from tests.support import arrow_driver

HOUR = dt.timedelta(hours=1)
BERLIN = ZoneInfo("Europe/Berlin")
DAYS = Freshness(within=3 * HOUR, on={"saturday": 12 * HOUR, "sunday": None})


def named(day: str, limit: object) -> Any:
    """Return what somebody may have declared of a day, right or wrong."""
    return {day: limit}


SATURDAY = dt.date(2026, 11, 28)


def at(day: int, hour: int, minute: int = 0, zone: Any = BERLIN) -> dt.datetime:
    """Return a moment of November 2026, whose 28th is a Saturday."""
    return dt.datetime(2026, 11, 1, hour, minute, tzinfo=zone) + dt.timedelta(days=day - 1)


@pytest.mark.parametrize(
    ("since", "now", "share"),
    [
        (at(24, 8), at(24, 9, 30), 0.5),
        (at(28, 6), at(28, 12), 0.5),
        (at(28, 21), at(29, 0), 0.25),
        (at(28, 21), at(30, 0), 0.25),
        (at(28, 21), at(30, 2, 15), 1.0),
        (at(27, 23), at(28, 8), 1.0),  # an hour of a Friday, eight of a Saturday
        (at(29, 1), at(29, 23), 0.0),
    ],
)
def test_each_hour_counts_by_the_limit_of_its_own_day(
    since: dt.datetime, now: dt.datetime, share: float
) -> None:
    assert used(DAYS, since.astimezone(dt.UTC), now.astimezone(dt.UTC), BERLIN) == pytest.approx(share)


def test_days_are_of_the_pipelines_zone_and_of_its_own_length() -> None:
    late = dt.datetime(2026, 11, 28, 23, 30, tzinfo=dt.UTC)  # in Berlin it is Sunday
    assert used(DAYS, late, late + HOUR / 2, BERLIN) == 0
    assert used(DAYS, late, late + HOUR / 2, ZoneInfo("UTC")) == pytest.approx(1 / 24)
    daily = Freshness(within=24 * HOUR)
    longest = (
        dt.datetime(2026, 10, 25, tzinfo=BERLIN),
        dt.datetime(2026, 10, 26, tzinfo=BERLIN),
    )  # clocks go back
    assert used(daily, *longest, BERLIN) == pytest.approx(25 / 24)


def test_what_was_delivered_long_ago_is_late_and_soon_told() -> None:
    assert used(DAYS, dt.datetime(1970, 1, 1, tzinfo=dt.UTC), at(28, 1), BERLIN) > 1


@pytest.mark.parametrize(
    ("rows", "first_weeks_ago", "told"),
    [
        ([100, 90, 110, 100], 3, None),
        ([49, 90, 110, 100], 3, "fewer than 50"),
        ([201, 90, 110, 100], 3, "more than 200"),
        ([50, 90, 110, 100], 3, None),
        ([0, 100, 100], 1, None),  # one week is known, and two are wanted
        ([0, 0, 0], 4, None),
        ([1, 0, 0], 4, "more than 0"),
    ],
)
def test_a_day_is_compared_with_the_same_day_of_the_weeks_before(
    rows: list[int], first_weeks_ago: int, told: str | None
) -> None:
    came = {SATURDAY - dt.timedelta(weeks=number): count for number, count in enumerate(rows)}
    others = {day - dt.timedelta(days=1): 5_000 for day in came}
    first = SATURDAY - dt.timedelta(weeks=first_weeks_ago)
    found = unusual(Volume(), came | others, day=SATURDAY, first=first)
    assert (found is None) if told is None else (told in (found or ""))


@pytest.mark.parametrize(
    ("declared", "wrong"),
    [
        ({"freshness": HOUR}, "freshness: "),
        ({"freshness": Freshness(within=HOUR / 60)}, "freshness.within: "),
        (
            {"freshness": Freshness(within=HOUR, on=named("Sunday", HOUR))},
            "freshness.on: 'Sunday' must be one of monday",
        ),
        ({"freshness": Freshness(within=HOUR, on=named("sunday", 3))}, "freshness.on['sunday']: 3"),
        ({"freshness": Freshness(within=HOUR, on=[1])}, "freshness.on: must be a mapping"),
        (
            {
                "freshness": Freshness(
                    within=HOUR,
                    on=dict.fromkeys(
                        ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
                    ),
                )
            },
            "freshness.on: no day counts",
        ),
        ({"volume": 3}, "volume: 3"),
        ({"volume": Volume(times=(2, 1))}, "volume.times: (2, 1)"),
        ({"volume": Volume(times=(1, float("nan")))}, "volume.times: (1, nan)"),
        ({"volume": Volume(weeks=1)}, "volume: 1 <= at_least <= weeks"),
        ({"alert_repeat": 3}, "alert_repeat: 3"),
        ({"airflow": Airflow(time_zone="Europe/Berlin")}, "airflow.time_zone: "),
    ],
)
def test_a_threshold_that_is_wrong_is_named_by_its_field(declared: dict[str, Any], wrong: str) -> None:
    [found] = problems(replace(arrow_driver.pipeline("taps"), schema="id bigint, at timestamp", **declared))
    assert found.startswith(wrong)


def test_thresholds_alone_have_a_time_zone() -> None:
    declared = {"volume": Volume(), "airflow": Airflow(time_zone="Europe/Berlin")}
    assert problems(replace(arrow_driver.pipeline("taps"), **declared)) == []
