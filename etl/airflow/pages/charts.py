"""Draws bars and lines over time, one SVG path per series; the figures that a reader needs are written beside them.

Each batch stands at the moment of its commit. Of those that came at one moment none hides another: they stand beside
each other.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from etl.airflow.pages.formatting import day, number, seconds, share
from etl.airflow.pages.records import BatchRow, VerdictRow, new_streams
from etl.common.wording import pluralize

WIDTH, HEIGHT = 480, 96  # of the drawing area, in SVG's own units
BATCHES = 240  # in one chart
WIDEST = 16  # a bar
NEAREST = 1  # the middles of two bars
NO_VALUE = "no finite value"


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
    dates: tuple[str, ...]  # of the left edge, the middle and the right edge; one where all is of one moment
    summary: str  # the chart in one sentence, for those who can't see it
    bottom: str = ""  # what the lower edge stands for; nothing is said of 0
    marks: str = ""  # lines where a new stream begins


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where one batch stands on the axis of time."""

    middle: float
    wide: float

    @property
    def left(self) -> float:
        return self.middle - self.wide / 2


def volume(batches: Sequence[BatchRow]) -> Chart:
    """Draw the rows of each batch, oldest first: delivered, and held on top of them."""
    highest = max((batch.rows_in for batch in batches), default=0)
    delivered = [batch.delivered for batch in batches]
    held = [batch.quarantined for batch in batches]
    drawn = _chart(
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
    return _marked(drawn, batches)


def held_share(batches: Sequence[BatchRow]) -> Chart:
    values = [batch.held_share or 0 for batch in batches]
    drawn = _bar_chart("Share held", batches, "held", "held", values, share, _newest(values))
    return _marked(drawn, batches)


def gaps(batches: Sequence[BatchRow]) -> Chart:
    """Draw the time since the batch before: how fresh the data was kept."""
    moments = [batch.committed_at for batch in batches]
    waited = [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]
    values = [0.0, *waited]
    title, named = "Time between batches", "since the batch before"
    drawn = _bar_chart(title, batches, named, "delivered", values, seconds, _newest(waited))
    return _marked(drawn, batches)


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
    if not any(value is not None and math.isfinite(value) for value in values):
        return _without_value(title, batches, write(_newest(values)))
    drawn = [max(value, 0) if value is not None and math.isfinite(value) else 0 for value in values]
    return _bar_chart(title, batches, title, "delivered", drawn, write, _newest(values))


def lines(title: str, batches: Sequence[Dated], named: Mapping[str, Sequence[float | None]]) -> Chart:
    """Draw each named series as a line, oldest first; at most three.

    The lines lie between the least and the greatest value of all; of no finite value nothing is drawn.
    """
    all_ = [one for values in named.values() for one in values if one is not None and math.isfinite(one)]
    newest = " / ".join(number(_newest(values)) for values in named.values())
    if not all_:
        return _without_value(title, batches, newest)
    low, high = min(all_), max(all_)
    slots = _slots(batches)
    return Chart(
        title=title,
        series=tuple(
            Series(name=name, kind=f"line{index}", path=_line(slots, values, low, high))
            for index, (name, values) in enumerate(named.items())
        ),
        top=number(high) if high > low else f"{number(high)} throughout",
        bottom=number(low) if high > low else "",
        last=newest,
        dates=_dates(batches),
        summary=f"{_of(title, batches)}, from {number(low)} to {number(high)}, last {newest}",
    )


def _without_value(title: str, batches: Sequence[Dated], newest: str) -> Chart:
    return Chart(
        title=title,
        series=(),
        top=NO_VALUE,
        last=newest,
        dates=_dates(batches),
        summary=f"{_of(title, batches)}, {NO_VALUE}, last {newest}",
    )


def _of(title: str, batches: Sequence[Dated]) -> str:
    """Say of how many batches a chart is."""
    return f"{title}: {pluralize(len(batches), 'batch', 'batches')}"


def _newest(old_first: Sequence[float | None]) -> float | None:
    return old_first[-1] if old_first else None


def _slots(batches: Sequence[Dated]) -> list[Slot]:
    """Return where each batch stands, oldest first; a bar is as wide as leaves room for its neighbours."""
    if not batches:
        return []
    first, left, right = batches[0].committed_at, WIDEST / 2, WIDTH - WIDEST / 2
    whole = max((one.committed_at - first).total_seconds() for one in batches)
    scale = (right - left) / whole if whole else 0.0
    middles: list[float] = []
    for one in batches:
        least = middles[-1] + NEAREST if middles else left
        middles.append(max(left + scale * (one.committed_at - first).total_seconds(), least))
    most = right
    for index in range(len(middles) - 1, -1, -1):
        middles[index] = min(middles[index], most)
        most = middles[index] - NEAREST
    rooms = [WIDEST, *(later - earlier for earlier, later in pairwise(middles)), WIDEST]
    return [
        Slot(middle=middle, wide=0.8 * min(WIDEST, before, after))
        for middle, (before, after) in zip(middles, pairwise(rooms), strict=True)
    ]


def _dates(batches: Sequence[Dated]) -> tuple[str, ...]:
    """Return what is written under the first batch, the middle of the axis, and the last batch."""
    if not batches:
        return ()
    first, last = batches[0].committed_at, max(one.committed_at for one in batches)
    return (day(first), day(first + (last - first) / 2), day(last)) if last > first else (day(first),)


def _marked(chart: Chart, batches: Sequence[BatchRow]) -> Chart:
    """Draw a line before the first batch of each new stream."""
    begun = new_streams(batches)
    lines = (
        f"M{max(slot.left - 1, 0):.1f} 0V{HEIGHT}"
        for slot, batch in zip(_slots(batches), batches, strict=True)
        if batch.delivery_id in begun
    )
    return replace(chart, marks="".join(lines))


def _line(slots: Sequence[Slot], values: Sequence[float | None], low: float, high: float) -> str:
    """Draw a line from value to value, with gaps where there is none.

    A value alone is as wide as its batch.
    """
    parts, drawing = [], False
    for slot, value in zip(slots, values, strict=True):
        if value is None or not math.isfinite(value):
            drawing = False
            continue
        # halves, for the difference of two numbers may be beyond all
        tall = HEIGHT * (1 - (value / 2 - low / 2) / (high / 2 - low / 2)) if high > low else HEIGHT / 2
        parts.append(f"{'L' if drawing else 'M'}{slot.left:.1f} {tall:.1f}h{slot.wide:.1f}")
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
    top, now, slots = write(highest), write(newest), _slots(batches)
    return Chart(
        title=title,
        series=tuple(
            Series(name=name, kind=kind, path=_bars(slots, values, below, highest))
            for name, kind, values, below in series
        ),
        top=top,
        last=now,
        dates=_dates(batches),
        summary=f"{_of(title, batches)}, at most {top}, last {now}",
    )


def _bars(slots: Sequence[Slot], values: Sequence[float], below: Sequence[float], highest: float) -> str:
    """Draw a bar for each value on top of the one below it; any value but zero is at least one unit high."""
    if not values or not highest:
        return ""
    parts = []
    for slot, value, base in zip(slots, values, below, strict=True):
        if value:
            wide = f"{slot.wide:.1f}"
            tall = max(1.0, value / highest * HEIGHT)
            foot = HEIGHT - base / highest * HEIGHT
            parts.append(f"M{slot.left:.1f} {max(foot - tall, 0):.1f}h{wide}v{tall:.1f}h-{wide}z")
    return "".join(parts)
