"""Declares how old and how much a pipeline's data may be, by the day of the week."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
WEEKDAYS: tuple[Weekday, ...] = get_args(Weekday)  # as datetime counts them


@dataclass(frozen=True, kw_only=True)
class Freshness:
    """How long ago a pipeline's last delivery may be. Days are of the pipeline's `airflow.time_zone`."""

    within: dt.timedelta
    # Of days that differ. None: such a day does not count, and what is due may come after it.
    on: Mapping[Weekday, dt.timedelta | None] = field(default_factory=dict)

    def limit_on(self, day: Weekday) -> dt.timedelta | None:
        """Return the limit of a day of the week; None: the day does not count."""
        return self.on.get(day, self.within)


@dataclass(frozen=True, kw_only=True)
class Volume:
    """How many rows a day's deliveries may bring, by the same day of the week in the weeks before."""

    times: tuple[float, float] = (0.5, 2.0)  # of the median of these days
    weeks: int = 4
    at_least: int = 2  # weeks that are known; with fewer nothing is judged
