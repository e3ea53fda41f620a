"""Generates data sets: readings of devices, actions in an app, a web server's log; one file an hour.

A day's files depend only on the seed, the day and the day before, so landing more days changes no file. Some records
come some minutes out of order, some twice, some a day late, in the second half of the next day, and some are malformed.
Some readings are faulty, in valid records. The command prints how many of each there are.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from etl.common.paths import filesystem, landing_path
from etl.operations.datasets.flights import put

DAY, HOUR, MINUTE = 86_400, 3600, 60  # seconds
FATES = ("double", "late", "malformed", "implausible")
SHARE = 0.008  # of the records, for each fate
DELAYED = 0.05  # of the records that are not late: they come up to LATEST after their time
LATEST = 20 * MINUTE
FAULTY = 0.01  # of the readings: too warm, at too low a voltage, and plausible all the same
DEVICES, PHONES = 12, 60
ACTIONS = ("open", "open", "call", "call", "call", "pay")
VISITORS, REQUESTS = 40, 1200  # a day
STATUSES = (200,) * 12 + (304, 304, 301, 404, 404, 500)

FIRST_DAYS, SEED = "2026-01-01..2026-01-02", 1  # where none are asked for


@dataclass(frozen=True, order=True)
class Record:
    """One line of a file."""

    arrival: int  # seconds since 1970
    at: int  # what it tells, likewise
    line: str
    fate: str = ""  # one of FATES; none: a good one
    faulty: bool = False  # what it tells, though the record is good


@dataclass(frozen=True, kw_only=True)
class GeneratedFile:
    """One hour's records in the order of their arrival."""

    path: str  # below the landing
    records: tuple[Record, ...]

    @property
    def content(self) -> bytes:
        return "".join(f"{record.line}\n" for record in self.records).encode()


@dataclass(frozen=True, kw_only=True)
class LandedFiles:
    """What landing found and did."""

    files: int
    written: int  # whose bytes were not there yet
    counts: Counter[str]  # as `count_fates` has them


def land_generated(landing: str, dataset: str, days: Iterable[dt.date], *, seed: int) -> LandedFiles:
    """Land every file of these days; they are written in the order in which Spark is to read them."""
    store, root = filesystem(landing_path(landing))
    files = generated(dataset, days, seed=seed)
    written = sum(put(store, f"{root}/{file.path}", file.content) for file in files)
    return LandedFiles(files=len(files), written=written, counts=count_fates(files))


def generated(dataset: str, days: Iterable[dt.date], *, seed: int) -> list[GeneratedFile]:
    """Return the files of these days, in the order of their hours."""
    drawn = cache(lambda day: tuple(DATASETS[dataset].draw(day, seed)))
    before = dt.timedelta(days=1)
    return [file for day in days for file in _hourly(dataset, day, [*drawn(day - before), *drawn(day)])]


def count_fates(files: Sequence[GeneratedFile]) -> Counter[str]:
    """Count the `records`, those of each fate, the `faulty` and the `out of order`: older than one before.

    Faulty and out of order are counted of those without a fate only.
    """
    records = [record for file in files for record in file.records]
    counts = Counter({"records": len(records), "faulty": 0, "out of order": 0} | dict.fromkeys(FATES, 0))
    newest = 0
    for record in records:
        counts[record.fate] += 1
        if not record.fate:
            counts["faulty"] += record.faulty
            counts["out of order"] += record.at < newest
            newest = max(newest, record.at)
    del counts[""]
    return counts


def _hourly(dataset: str, day: dt.date, drawn: Iterable[Record]) -> Iterator[GeneratedFile]:
    first = _midnight(day)
    by_hour: dict[int, list[Record]] = {}
    for record in drawn:
        by_hour.setdefault((record.arrival - first) // HOUR, []).append(record)
    for hour in range(24):
        records = tuple(sorted(by_hour.get(hour, [])))
        yield GeneratedFile(path=f"{dataset}/dt={day}/{hour:02}{DATASETS[dataset].ending}", records=records)


def _readings(day: dt.date, seed: int) -> Iterator[Record]:
    """Yield what the devices send that day: a reading every two minutes, but none while a device is offline."""
    draw, sensor = random.Random(f"devices {seed} {day}"), random.Random(f"sensors {seed} {day}")
    for number in range(DEVICES):
        device = f"device-{number:02}"
        pauses = _pauses(draw, day, often=number == 0)
        for at in range(_midnight(day), _midnight(day) + DAY, 2 * MINUTE):
            if any(begin <= at < end for begin, end in pauses):
                continue
            faulty = sensor.random() < FAULTY
            values = {
                "device": device,
                "reading": at // MINUTE,
                "at": _iso(at + number),
                "temperature": round(draw.gauss(21, 3) + 12 * faulty, 2),
                "battery": round(1 - (at % (10 * DAY)) / (11 * DAY), 3),
                "voltage": round(sensor.gauss(3.7, 0.05) - 0.4 * faulty, 3),
                "faulty": faulty,
            }
            yield from _sent(draw, at + number, values, faulty=faulty, temperature=999.9)


def _pauses(draw: random.Random, day: dt.date, *, often: bool) -> list[tuple[int, int]]:
    """Return when a device is offline, as (begin, end) in seconds since 1970.

    It is now and then, or with `often` every two hours of the afternoon.
    """
    if often:
        noon = _midnight(day) + DAY // 2
        return [(noon + n * 2 * HOUR, noon + n * 2 * HOUR + 40 * MINUTE) for n in range(4)]
    begins = [_midnight(day) + draw.randrange(DAY) for _ in range(draw.choice((0, 0, 1, 2)))]
    return [(begin, begin + draw.randrange(45, 120) * MINUTE) for begin in begins]


def _done(day: dt.date, seed: int) -> Iterator[Record]:
    """Yield what is done with the app that day; an action has no id, so none comes twice."""
    draw = random.Random(f"actions {seed} {day}")
    for number in range(PHONES):
        for _ in range(draw.randrange(1, 6)):
            at = _midnight(day) + draw.randrange(DAY)
            for _ in range(draw.randrange(1, 15)):
                values = {"phone": f"+4520{number:06}", "at": _iso(at), "action": draw.choice(ACTIONS)}
                yield from _sent(draw, at, values, doubled=False, action="?")
                at += draw.randrange(5, 20 * MINUTE)
                if at >= _midnight(day) + DAY:
                    break


def _requested(day: dt.date, seed: int) -> Iterator[Record]:
    """Yield what a web server was asked for that day; the addresses are those that RFC 5737 has for examples."""
    draw = random.Random(f"requests {seed} {day}")
    for _ in range(REQUESTS):
        at, status = _midnight(day) + draw.randrange(DAY), draw.choice(STATUSES)
        values = {
            "at": at,
            "address": f"203.0.113.{draw.randrange(VISITORS)}",
            "name": draw.choice(("-", "-", "-", "ada", "grace")),
            "path": f"/products/{draw.randrange(100)}?from=%22mail%22",
            "status": status,
            "bytes": draw.randrange(200, 40_000) if status == 200 else "-",
        }
        yield from _sent(draw, at, values, write=_logged, doubled=False, status=999)


def _logged(values: Mapping[str, Any]) -> str:
    """Write a request as a server writes it in the Common Log Format."""
    time = dt.datetime.fromtimestamp(values["at"], dt.UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    request = f"GET {values['path']} HTTP/1.1"
    return f'{values["address"]} - {values["name"]} [{time}] "{request}" {values["status"]} {values["bytes"]}'


def _sent(
    draw: random.Random,
    at: int,
    values: dict[str, Any],
    *,
    write: Callable[[dict[str, Any]], str] = json.dumps,
    doubled: bool = True,
    faulty: bool = False,
    **implausible: Any,
) -> Iterator[Record]:
    """Yield the record as it arrives: once as it is, or by another fate."""
    last = at - at % DAY + DAY - 1  # of the day's seconds: but for late ones, a day has its own records alone
    delay = draw.randrange(LATEST) if draw.random() < DELAYED else 0
    arrival, line = min(at + delay, last), write(values)
    fate = draw.choices(("", *FATES), (1 - SHARE * len(FATES), *[SHARE] * len(FATES)))[0]
    # late for what was delivered in the half day before it comes
    if fate == "late" and at % DAY >= DAY // 2 + LATEST:
        yield Record(arrival=at + DAY, at=at, line=line, fate=fate)
    elif fate == "malformed":
        yield Record(arrival=arrival, at=at, line=line[: len(line) // 2], fate=fate)
    elif fate == "implausible":
        yield Record(arrival=arrival, at=at, line=write(values | implausible), fate=fate)
    else:
        yield Record(arrival=arrival, at=at, line=line, faulty=faulty)
        if fate == "double" and doubled:
            second_arrival = min(arrival + draw.randrange(1, LATEST), last)
            yield Record(arrival=second_arrival, at=at, line=line, fate=fate)


def _midnight(day: dt.date) -> int:
    """Return the day's midnight in UTC, in seconds since 1970."""
    return int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp())


def _iso(at: int) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """How a day's records are drawn, and what the names of its files end with."""

    draw: Callable[[dt.date, int], Iterator[Record]]  # (day, seed)
    ending: str = ".jsonl"


DATASETS: Mapping[str, Dataset] = {
    "devices": Dataset(draw=_readings),
    "actions": Dataset(draw=_done),
    "requests": Dataset(draw=_requested, ending=".log"),
}
