"""Impressions of ads and clicks on them, each of which knows its fate, and the rows that must come of them.

Time goes in phases of six hours. A topic has its records in the order of their arrival, less than an hour after their
time: the two hours of the watermark are enough for all but those that are meant to be late, which come in the phase after
theirs. A phase ends at another time for clicks than for impressions, so some clicks are there before their impressions.
Shares no code with the pipeline.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from tests.support.kafka.topics import Record, Sent
from tests.support.oracle import Row, Rows

MINUTE, HOUR = 60, 3600
START = 1_767_225_600  # 2026-01-01, seconds since 1970
PHASE, PHASES = 6 * HOUR, 3
WAITS = 2 * HOUR  # what the watermark waits
END = START + PHASES * PHASE + 10 * HOUR  # of the last records, which take the watermark past all before
IMPRESSIONS_UNTIL = (START + PHASE, START + 2 * PHASE, END, END + HOUR)  # the phases, by arrival
CLICKS_UNTIL = (START + PHASE - HOUR, START + 2 * PHASE + HOUR, END, END + HOUR)
PARTITIONS = 2

NO_IMPRESSION, NO_CLICK, PRICE = (
    "the impression has its id",
    "a click has its id",
    "the price is plausible",
)
LATE, BROKEN = "late", "malformed"

# How many impressions of each kind are shown in a phase.
KINDS = {
    "clicked": 25,
    "clicked twice": 5,
    "clicked, and told twice": 6,  # the same click comes again, minutes later
    "clicked at once": 1,  # in its very second
    "clicked after an hour": 1,  # to the second, which is no longer within it
    "clicked after more than an hour": 5,
    "never clicked": 27,
    "of no price": 2,  # less than nothing; clicked
    "without its id": 1,  # and a click without it
    "clicked without ids": 1,  # by two clicks, which are no doubles
    "broken": 2,
}
# Those of the first two phases, beside them: what is late comes with the next phase.
LATE_KINDS = {
    "late": 2,  # its click is on time
    "of a late click": 3,
    "of a late double": 1,  # its click is on time, and comes again late
}
BROKEN_CLICKS, STRAY_CLICKS = 2, 3  # in a phase; strays are of no impression


@dataclass(frozen=True, kw_only=True)
class Event:
    """One record of either topic."""

    id: str | None
    at: int  # seconds since 1970
    arrival: int
    fate: str = ""  # LATE or BROKEN; none: it comes to the transform

    @property
    def content(self) -> dict[str, object]:
        """Return the event's content without its time."""
        raise NotImplementedError

    @property
    def value(self) -> str:
        whole = json.dumps({**self.content, "at": f"{np.datetime64(self.at, 's')}Z"})
        return whole[: len(whole) // 2] if self.fate == BROKEN else whole


@dataclass(frozen=True, kw_only=True)
class Impression(Event):
    ad: str
    cents: int

    @property
    def content(self) -> dict[str, object]:
        known = {"impression": self.id, "ad": self.ad, "publisher": "news", "price": self.cents / 100}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Click(Event):
    of: str | None

    @property
    def content(self) -> dict[str, object]:
        known = {"click": self.id, "impression": self.of}
        return {name: value for name, value in known.items() if value is not None}


E = TypeVar("E", Impression, Click)


@dataclass(frozen=True, kw_only=True)
class Ads:
    """All that is sent, or what was sent so far."""

    impressions: list[Impression] = field(default_factory=list)
    clicks: list[Click] = field(default_factory=list)

    @property
    def phases(self) -> list[tuple[list[Impression], list[Click]]]:
        """Return what is sent in each phase, in the order of arrival; the last has what comes at the END."""
        shown, clicked = _cut(self.impressions, IMPRESSIONS_UNTIL), _cut(self.clicks, CLICKS_UNTIL)
        return list(zip(shown, clicked, strict=True))

    def doubles(self, phase: int) -> int:
        """Count the clicks of a phase that had come before."""
        before = [
            click.id for _, clicks in self.phases[:phase] for click in clicks if click.id and not click.fate
        ]
        these = [click.id for click in self.phases[phase][1] if click.id and not click.fate]
        return len(these) - len({*these} - {*before})

    @property
    def watermark(self) -> int:
        """When both topics are read to here: what the one that is less far has come to, less what it waits."""
        return (
            min(max(one.at for one in some if not one.fate) for some in (self.impressions, self.clicks))
            - WAITS
        )

    def rows(self) -> tuple[Rows, Rows]:
        """Return the rows that are delivered, and those that the suite holds with their reasons, as quarantine has them."""
        delivered, held = Counter[Row](), Counter[Row]()
        for one, click in self._attributed():
            reasons = tuple(
                reason
                for reason, broken in (
                    (NO_IMPRESSION, one.id is None),
                    (NO_CLICK, click is not None and click.id is None),
                    (PRICE, one.cents < 0),
                )
                if broken
            )
            if reasons:
                held[reasons, None, None, _row(one, click, _as_text)] += 1
            else:
                delivered[_row(one, click, _as_microseconds)] += 1
        return delivered, held

    def _attributed(self) -> Iterator[tuple[Impression, Click | None]]:
        """Pair each impression with each of its clicks, or with none if it is too old to get one."""
        once = {click.id: click for click in self.clicks if click.id and not click.fate}
        nameless = [click for click in self.clicks if click.id is None and not click.fate]
        for one in self.impressions:
            if one.fate:
                continue
            of_it = [click for click in (*once.values(), *nameless) if one.id and click.of == one.id]
            within = [click for click in of_it if 0 <= click.at - one.at < HOUR]
            yield from ((one, click) for click in within)
            if not within and one.at + HOUR <= self.watermark:
                yield one, None


def _cut(events: Sequence[E], until: Sequence[int]) -> list[list[E]]:
    ordered = sorted(events, key=lambda event: event.arrival)
    return [[one for one in ordered if begin <= one.arrival < end] for begin, end in pairwise((0, *until))]


def _row(one: Impression, click: Click | None, moment: Callable[[int], object]) -> Row:
    told = (None, None, None) if click is None else (click.id, moment(click.at), click.at - one.at)
    return (one.id, one.ad, "news", f"{one.cents / 100:.4f}", moment(one.at), *told)


def _as_microseconds(at: int) -> int:
    return at * 1_000_000


def _as_text(at: int) -> str:
    return str(np.datetime64(at * 1_000_000, "us")).replace("T", " ") + "Z"


def records(events: Sequence[Event]) -> list[Record]:
    """Return the events as records, dealt out to the topic's partitions."""
    return [
        Record(value=event.value, partition=number % PARTITIONS, malformed=event.fate == BROKEN)
        for number, event in enumerate(events)
    ]


def held_records(events: Sequence[Event], sent: Sequence[Sent]) -> Rows:
    """Return the records that are held before the transform: reason, place and content; `sent` says where Kafka has them."""
    return Counter(
        (
            event.fate,
            f"kafka://{one.topic}/{one.record.partition}/{one.offset}",
            told(event.value, event.fate),
        )
        for event, one in zip(events, sent, strict=True)
        if event.fate
    )


def told(raw: str, fate: str) -> str:
    """Return a held record in a form to compare: a late one is kept as JSON of another spelling."""
    if fate == BROKEN:
        return raw
    values = json.loads(raw)
    return json.dumps(values | {"at": values["at"].removesuffix("Z").removesuffix(".000000")}, sort_keys=True)


def drawn(seed: int) -> Ads:
    """Draw events by the seed: the same seed gives the same events."""
    draw, ads = random.Random(seed), Ads()
    for phase in range(PHASES):
        begin = START + phase * PHASE
        late = LATE_KINDS if phase < PHASES - 1 else {}
        kinds = [kind for kind, count in (KINDS | late).items() for _ in range(count)]
        for number, kind in enumerate(kinds):
            # What is late is of the phase's first minutes: the watermark has passed it when the next phase is read.
            at = begin + draw.randrange(30 * MINUTE if kind in LATE_KINDS else PHASE)
            _show(ads, draw, f"{phase}-{number:02}", kind, at)
        for number in range(BROKEN_CLICKS):
            _click(ads, draw, f"broken-{phase}-{number}", "nobody", begin + draw.randrange(PHASE), BROKEN)
        for number in range(STRAY_CLICKS):
            _click(ads, draw, f"stray-{phase}-{number}", f"never-{number}", begin + draw.randrange(PHASE))
    for name in ("last", "open"):  # the second one may still be clicked, so it is in no row
        ads.impressions.append(Impression(id=name, at=END, arrival=END, ad="ad-0", cents=1))
    ads.clicks.append(Click(id="last", of="last", at=END, arrival=END))
    return ads


def _show(ads: Ads, draw: random.Random, name: str, kind: str, at: int) -> None:
    """Add an impression with its clicks."""
    late = kind == "late"
    shown = Impression(
        id=None if kind == "without its id" else name,
        at=at,
        arrival=_late(draw, at) if late else _soon(draw, at),
        ad=f"ad-{draw.randrange(9)}",
        cents=-5 if kind == "of no price" else draw.randrange(500),
        fate=LATE if late else BROKEN if kind == "broken" else "",
    )
    ads.impressions.append(shown)
    soon = at + draw.randrange(1, 50 * MINUTE)
    if kind in ("never clicked", "broken"):
        return
    if kind in ("without its id", "clicked without ids"):
        for _ in range(1 if shown.id is None else 2):
            _click(ads, draw, None, shown.id, soon)
        return
    if kind == "of a late click":
        _click(ads, draw, f"click-{name}", name, soon, LATE)
        return
    after = {
        "clicked at once": 0,
        "clicked after an hour": HOUR,
        "clicked after more than an hour": HOUR + draw.randrange(1, 40 * MINUTE),
    }
    click = _click(ads, draw, f"click-{name}", name, at + after[kind] if kind in after else soon)
    if kind == "clicked twice":
        _click(ads, draw, f"again-{name}", name, soon + draw.randrange(1, 9 * MINUTE))
    if kind == "clicked, and told twice":
        ads.clicks.append(replace(click, arrival=click.arrival + draw.randrange(1, 15 * MINUTE)))
    if kind == "of a late double":
        ads.clicks.append(replace(click, arrival=_late(draw, click.at), fate=LATE))


def _click(ads: Ads, draw: random.Random, name: str | None, of: str | None, at: int, fate: str = "") -> Click:
    arrival = _late(draw, at) if fate == LATE else _soon(draw, at)
    ads.clicks.append(Click(id=name, of=of, at=at, arrival=arrival, fate=fate))
    return ads.clicks[-1]


def _soon(draw: random.Random, at: int) -> int:
    return at + draw.randrange(30 * MINUTE)


def _late(draw: random.Random, at: int) -> int:
    """Draw a time for a late event, in the phase after that of `at`."""
    begin = at - (at - START) % PHASE
    return begin + PHASE + draw.randrange(HOUR, 5 * HOUR)
