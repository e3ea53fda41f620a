"""State of a user's own, with timers: a phone that is silent for two hours is told once the watermark says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from etl import kept
from etl.checkpoint import open_checkpoint
from tests.oracle import Rows
from tests.spark import taps
from tests.spark.runs import Home
from tests.spark.taps import HOUR, NAME, Tap, assert_clean, declare, flat, in_force, land_all, recipe

WAIT = 2 * HOUR
COLUMNS = pa.schema([("phone", pa.string()), ("last", taps.MOMENT)])


def silences(batches: Sequence[Sequence[Tap]]) -> tuple[Rows, dict[str, int]]:
    """What is told, batch by batch, and what is known of each phone afterwards."""
    told: Rows = Counter()
    last: dict[str, int] = {}
    newest = 0
    for made in batches:
        watermark = newest - 2 * HOUR
        for tap in made:
            last[tap.phone] = max(tap.at, last.get(tap.phone, 0))
        for phone in [phone for phone, at in last.items() if at + WAIT <= watermark]:
            told[phone, last.pop(phone) * 1_000_000] += 1
        newest = max(newest, *(tap.at for tap in made)) if made else newest
    return told, last


def test_timers_fire_once_over_batches_and_runs(home: Home) -> None:
    files = [
        [tap for tap in made if int(tap.phone[3:]) % 4 or number < 5] for number, made in enumerate(drawn())
    ]
    declare(home, body=recipe("timers"), sink="Append()", columns=COLUMNS)
    land_all(home, files[:6])
    stream = home.run(NAME).stream
    land_all(home, files[6:], first=6)
    home.run(NAME)

    told, last = silences([*files[:6], [], *files[6:], []])  # each run ends with a batch of no file
    assert in_force(home) == told
    assert len(told) > 5
    assert home.reader(NAME).on_lake(system=()) == told
    assert home.run(NAME).batches == 0, "time by the watermark stands still when nothing lands"
    assert_clean(home)

    [state] = [one for one in kept.read_state(home.place, home.pipeline(NAME), spark=home.spark) if one.keys]
    checkpoint = open_checkpoint(str(home.checkpoint(stream, NAME)), sources=1)
    assert (state.batch, state.keys) == (checkpoint.commits[-1], len(last))


def test_a_shown_state_is_the_one_after_the_last_batch(home: Home) -> None:
    files = taps.taps(3, 30, seed=42)
    declare(home)
    land_all(home, files)
    home.run(NAME)
    [state] = kept.read_state(home.place, home.pipeline(NAME), most=1000, spark=home.spark)
    found = Counter((row["key"]["action"], row["value"]["count"]) for row in state.rows)
    assert found == Counter((action, count) for (_, action, count, _) in taps.hourly(flat(files)))


def drawn() -> list[list[Tap]]:
    return taps.taps(10, 60, seed=41)
