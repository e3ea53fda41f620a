"""Generated events of eight columns, as JSON Lines or CSV; 1.5 % of the rows break one of the six rules."""

from __future__ import annotations

import csv
import datetime as dt
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

SEED = 7
BAD = 0.015  # share of the rows that break a rule
SCHEMA = (
    "event_id string, device_id string, event_time timestamp, temperature double, humidity double,"
    " state string, firmware string, battery int"
)
DAY = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)
FLAWS = (
    {"temperature": None},
    {"humidity": 130.5},
    {"state": "bogus"},
    {"event_id": None},
    {"battery": -1},
    {"firmware": "unknown"},
)


def generate(folder: Path, *, rows: int, files: int, kind: str, malformed: float) -> list[Path]:
    """The events in `files` files of a kind, a share of them malformed; what is there already is left as it is."""
    target = folder / f"events-{kind}-{rows}-{files}-{malformed}"
    if not target.is_dir():
        part = target.with_name(f".{target.name}.part")
        part.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            first, end = rows * number // files, rows * (number + 1) // files
            with (part / f"part-{number:04d}.{kind}").open("w") as file:
                _WRITERS[kind](file, _events(first, end, rows, malformed))
        part.rename(target)
    return sorted(target.glob("*"))


def good(first: int, count: int) -> str:
    """Return lines of JSON events that break no rule."""
    chance = random.Random(f"{SEED} {first}")
    return "".join(
        json.dumps(_event(number, first + count, chance)) + "\n" for number in range(first, first + count)
    )


def _events(first: int, end: int, rows: int, malformed: float) -> Iterator[dict[str, object]]:
    chance = random.Random(f"{SEED} {first}")
    for number in range(first, end):
        event = _event(number, rows, chance)
        if chance.random() < BAD:
            event |= chance.choice(FLAWS)
        if malformed and chance.random() < malformed:
            event["battery"] = "low"
        yield event


def _event(number: int, rows: int, chance: random.Random) -> dict[str, object]:
    moment = DAY + dt.timedelta(days=number / rows)
    return {
        "event_id": f"{number:012x}",
        "device_id": f"dev-{number % 5000:05d}",
        "event_time": moment.isoformat(timespec="milliseconds"),
        "temperature": round(chance.gauss(21, 6), 3),
        "humidity": round(chance.uniform(0, 100), 2),
        "state": chance.choice(("on", "off", "idle")),
        "firmware": f"v2.{number % 7}",
        "battery": chance.randint(0, 100),
    }


def _write_json(file: TextIO, events: Iterable[dict[str, object]]) -> None:
    file.writelines(json.dumps(event) + "\n" for event in events)


def _write_csv(file: TextIO, events: Iterable[dict[str, object]]) -> None:
    writer = csv.DictWriter(file, [column.split()[0] for column in SCHEMA.split(", ")])
    writer.writeheader()
    writer.writerows(events)


_WRITERS = {"jsonl": _write_json, "csv": _write_csv}
