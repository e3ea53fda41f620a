"""Draws bars and lines over batches, one SVG path per series; the figures that a reader needs are written beside them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from etl.airflow.pages.formatting import day, number, seconds, share
from etl.airflow.pages.records import BatchRow, VerdictRow

WIDTH, HEIGHT = 480, 96  # of the drawing area, in SVG's own units
BATCHES = 240  # in one chart


class Dated(Protocol):
    """A record of a batch."""

    @property
    def committed_at(self) -> dt.datetime: ...


@dataclass(frozen=True, kw_only=True)
class Series:
    name: str
    kind: str  # class of style.css
    path: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    title: str
    series: tuple[Series, ...]
    top: str  # what the upper edge stands for
    last: str  # the newest value
    first_at: str
    last_at: str
    summary: str  # the chart in one sentence, for those who can't see it
    bottom: str = ""  # what the lower edge stands for; nothing is said of 0


def volume(batches: Sequence[BatchRow]) -> Chart:
    """Draw the rows of each batch, oldest first: delivered, and held on top of them."""
    highest = max((batch.rows_in for batch in batches), default=0)
    delivered = [batch.delivered for batch in batches]
    held = [batch.quarantined for batch in batches]
    return _chart(
        "Rows per batch",
        batches,
        [
            ("delivered", "delivered", delivered, [0] * len(batches)),
            ("held", "held", held, delivered),
        ],
        highest,
        number,
        batches[-1].rows_in if batches else None,
    )


def held_share(batches: Sequence[BatchRow]) -> Chart:
    values = [batch.held_share or 0 for batch in batches]
    return _bar_chart("Share held", batches, "held", "held", values, share, _newest(values))


def gaps(batches: Sequence[BatchRow]) -> Chart:
    """Draw the time since the batch before: how fresh the data was kept."""
    moments = [batch.committed_at for batch in batches]
    waited = [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]
    values = [0.0, *waited]
    title, named = "Time between batches", "since the batch before"
    return _bar_chart(title, batches, named, "delivered", values, seconds, _newest(waited))


def rule_share(verdicts: Sequence[VerdictRow]) -> Chart:
    """Draw the share of rows that break one rule, oldest first.

    Where a rule about the table failed, its bar is full.
    """
    values = [
        verdict.share or 0 if verdict.unexpected_count is not None else float(not verdict.success)
        for verdict in verdicts
    ]
    title, named = "Share of rows that break the rule", "rows that break it"
    return _bar_chart(title, verdicts, named, "held", values, share, _newest(values))


def stacked(
    title: str,
    batches: Sequence[Dated],
    named: Mapping[str, Sequence[float]],
    write: Callable[[float | None], str],
) -> Chart:
    """Draw the named parts of each batch on top of each other, oldest first; at most five."""
    below, series = [0.0] * len(batches), []
    for index, (name, values) in enumerate(named.items()):
        series.append((name, f"part{index}", values, below))
        below = [foot + value for foot, value in zip(below, values, strict=True)]
    return _chart(title, batches, series, max(below, default=0), write, _newest(below))


def amounts(
    title: str,
    batches: Sequence[Dated],
    values: Sequence[float | None],
    write: Callable[[float | None], str],
) -> Chart:
    """Draw a bar for each value, oldest first; none where there is no value."""
    drawn = [max(value, 0) if value is not None and math.isfinite(value) else 0 for value in values]
    return _bar_chart(title, batches, title, "delivered", drawn, write, _newest(values))


def lines(title: str, batches: Sequence[Dated], named: Mapping[str, Sequence[float | None]]) -> Chart:
    """Draw each named series as a line, oldest first; at most three.

    The lines lie between the least and the greatest value of all.
    """
    all_ = [one for values in named.values() for one in values if one is not None and math.isfinite(one)]
    low, high = min(all_, default=0), max(all_, default=0)
    newest = " / ".join(number(_newest(values)) for values in named.values())
    return Chart(
        title=title,
        series=tuple(
            Series(name=name, kind=f"line{index}", path=_line(values, low, high))
            for index, (name, values) in enumerate(named.items())
        ),
        top=number(high),
        bottom=number(low),
        last=newest,
        first_at=day(batches[0].committed_at) if batches else "",
        last_at=day(batches[-1].committed_at) if batches else "",
        summary=f"{title}: {len(batches)} batches, from {number(low)} to {number(high)}, last {newest}",
    )


def _newest(old_first: Sequence[float | None]) -> float | None:
    return old_first[-1] if old_first else None


def _line(values: Sequence[float | None], low: float, high: float) -> str:
    """Draw a line from value to value, with gaps where there is none.

    A value alone is as wide as its batch.
    """
    step = WIDTH / max(len(values), 24)
    parts, drawing = [], False
    for index, value in enumerate(values):
        if value is None or not math.isfinite(value):
            drawing = False
            continue
        # halves, for the difference of two numbers may be beyond all
        tall = HEIGHT * (1 - (value / 2 - low / 2) / (high / 2 - low / 2)) if high > low else HEIGHT / 2
        parts.append(f"{'L' if drawing else 'M'}{index * step:.1f} {tall:.1f}h{step * 0.8:.1f}")
        drawing = True
    return "".join(parts)


def _bar_chart(
    title: str,
    batches: Sequence[Dated],
    name: str,
    kind: str,
    values: Sequence[float],
    write: Callable[[float | None], str],
    newest: float | None,
) -> Chart:
    """Draw the bars of one series."""
    series = [(name, kind, values, [0] * len(values))]
    return _chart(title, batches, series, max(values, default=0), write, newest)


def _chart(
    title: str,
    batches: Sequence[Dated],
    series: Sequence[tuple[str, str, Sequence[float], Sequence[float]]],
    highest: float,
    write: Callable[[float | None], str],
    newest: float | None,
) -> Chart:
    top, now = write(highest), write(newest)
    return Chart(
        title=title,
        series=tuple(
            Series(name=name, kind=kind, path=_bars(values, below, highest))
            for name, kind, values, below in series
        ),
        top=top,
        last=now,
        first_at=day(batches[0].committed_at) if batches else "",
        last_at=day(batches[-1].committed_at) if batches else "",
        summary=f"{title}: {len(batches)} batches, at most {top}, last {now}",
    )


def _bars(values: Sequence[float], below: Sequence[float], highest: float) -> str:
    """Draw a bar for each value on top of the one below it; any value but zero is at least one unit high."""
    if not values or not highest:
        return ""
    step = WIDTH / max(len(values), 24)
    wide = f"{step * 0.8:.1f}"
    parts = []
    for index, (value, base) in enumerate(zip(values, below, strict=True)):
        if value:
            tall = max(1.0, value / highest * HEIGHT)
            foot = HEIGHT - base / highest * HEIGHT
            parts.append(f"M{index * step:.1f} {max(foot - tall, 0):.1f}h{wide}v{tall:.1f}h-{wide}z")
    return "".join(parts)
