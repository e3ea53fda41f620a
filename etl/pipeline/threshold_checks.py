"""Checks what a declaration says of how old and how much its data may be, and how often people hear of a trouble."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from etl.pipeline.thresholds import WEEKDAYS, Freshness, Volume

LEAST = dt.timedelta(minutes=5)  # how often somebody looks
MOST_WEEKS = 52


def threshold_problems(pipeline: Any) -> list[str]:
    """Name all that is wrong with these fields, each as `field: what, and what is wanted`."""
    found: list[str] = []
    if pipeline.freshness is not None:
        found += _freshness_problems(pipeline.freshness)
    if pipeline.volume is not None:
        found += _volume_problems(pipeline.volume)
    repeat = pipeline.alert_repeat
    if repeat is not None and not _is_limit(repeat):
        found.append(f"alert_repeat: {repeat!r} must be a datetime.timedelta of at least 5 minutes, or None")
    return found


def _freshness_problems(given: Any) -> list[str]:
    if not isinstance(given, Freshness):
        return [f"freshness: {given!r} must be Freshness(within=…)"]
    found: list[str] = []
    if not _is_limit(given.within):
        found.append(f"freshness.within: {given.within!r} must be a datetime.timedelta of at least 5 minutes")
    on: Any = given.on
    if not isinstance(on, Mapping):
        return [*found, "freshness.on: must be a mapping of day to datetime.timedelta or None"]
    for day, limit in on.items():
        if day not in WEEKDAYS:
            found.append(f"freshness.on: {day!r} must be one of {', '.join(WEEKDAYS)}")
        elif limit is not None and not _is_limit(limit):
            found.append(
                f"freshness.on[{day!r}]: {limit!r} must be a datetime.timedelta of at least 5 minutes, or None"
            )
    if all(given.limit_on(day) is None for day in WEEKDAYS):
        found.append("freshness.on: no day counts, so nothing would ever be late; leave freshness out")
    return found


def _volume_problems(given: Any) -> list[str]:
    if not isinstance(given, Volume):
        return [f"volume: {given!r} must be Volume(…)"]
    found: list[str] = []
    times = given.times
    if not (
        isinstance(times, tuple)
        and len(times) == 2
        and all(isinstance(one, int | float) and not isinstance(one, bool) for one in times)
        and 0 <= times[0] <= times[1] < float("inf")
    ):
        found.append(
            f"volume.times: {times!r} must be two numbers such as (0.5, 2.0), the first not above the second"
        )
    if not (
        _is_whole(given.weeks)
        and _is_whole(given.at_least)
        and 1 <= given.at_least <= given.weeks <= MOST_WEEKS
    ):
        found.append(
            f"volume: 1 <= at_least <= weeks <= {MOST_WEEKS}, whole numbers, must hold, and they are"
            f" {given.at_least!r} and {given.weeks!r}"
        )
    return found


def _is_limit(given: Any) -> bool:
    return isinstance(given, dt.timedelta) and given >= LEAST


def _is_whole(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)
