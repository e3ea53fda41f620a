"""A rule that compares with batches of its own day of the week finds them, however many others lie between."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest

from etl.pipeline import Airflow
from etl.quality.history import past_batches
from etl.quality.trend_rules import ROW_COUNT, Across
from tests.support import arrow_driver
from tests.support.ledger_rows import Ledger

ZONE = ZoneInfo("Pacific/Auckland")
AUCKLAND = replace(arrow_driver.pipeline("taps"), airflow=Airflow(time_zone=ZONE.key))


@pytest.fixture
def ledger(dsn: str) -> Ledger:
    found = Ledger(dsn=dsn)
    found.begin()
    return found


def test_batches_of_the_same_weekday_are_found_behind_others(ledger: Ledger) -> None:
    now = dt.datetime.now(ZONE)
    for days in range(22, 0, -1):
        of_today = days % 7 == 0
        ledger.deliver(1_000 + days if of_today else 10, at=now - dt.timedelta(days=days))
    plain, weekday = (
        Across.of(ROW_COUNT, "", {}, {"last": 2, "at_least": 2, "times": [0.5, 2], **same})
        for same in ({}, {"same": "weekday"})
    )
    past = past_batches(ledger.dsn, AUCKLAND, 2, 2)
    assert [one.rows for one in past] == [10, 10, 1_007, 1_014]
    assert plain.limits(past, now) == {"min_value": 5.0, "max_value": 20.0}
    assert weekday.limits(past, now.astimezone(dt.UTC)) == {"min_value": 505.25, "max_value": 2_021.0}
    assert [one.rows for one in past_batches(ledger.dsn, AUCKLAND, 2)] == [10, 10]
    assert weekday.limits(past[:3], now) is None, "one is too few"
    yesterday = now - dt.timedelta(days=1)
    assert weekday.limits(past, yesterday) is None, "of its weekday there is one"


def test_what_batches_are_alike_by_is_the_weekday_alone() -> None:
    with pytest.raises(ValueError, match="same is 'month', and can be 'weekday' alone"):
        Across.of(ROW_COUNT, "", {}, {"times": [0.5, 2], "same": "month"})
