"""Generated events: JSON Lines of eight columns; 1.5 % of the rows break one of the six rules."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator
from pathlib import Path

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


def generate(folder: Path, *, rows: int, files: int) -> list[Path]:
    """The events in `files` files; what is there already in this size is left as it is."""
    target = folder / f"events-{rows}-{files}"
    if not target.is_dir():
        part = target.with_name(f".{target.name}.part")
        part.mkdir(parents=True, exist_ok=True)
        for number in range(files):
            first, end = rows * number // files, rows * (number + 1) // files
            lines = (json.dumps(event) + "\n" for event in _events(first, end, rows))
            with (part / f"part-{number:04d}.jsonl").open("w") as file:
                file.writelines(lines)
        part.rename(target)
    return sorted(target.glob("*.jsonl"))


def _events(first: int, end: int, rows: int) -> Iterator[dict[str, object]]:
    chance = random.Random(f"{SEED} {first}")
    for number in range(first, end):
        moment = DAY + dt.timedelta(days=number / rows)
        event: dict[str, object] = {
            "event_id": f"{number:012x}",
            "device_id": f"dev-{number % 5000:05d}",
            "event_time": moment.isoformat(timespec="milliseconds"),
            "temperature": round(chance.gauss(21, 6), 3),
            "humidity": round(chance.uniform(0, 100), 2),
            "state": chance.choice(("on", "off", "idle")),
            "firmware": f"v2.{number % 7}",
            "battery": chance.randint(0, 100),
        }
        yield event | chance.choice(FLAWS) if chance.random() < BAD else event
