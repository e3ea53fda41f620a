"""State of a user's own, with timers: a phone that is silent for two hours is told once the watermark says so."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from etl.common.errors import StateChanged
from etl.operations.control.state import read_state
from etl.spark.checkpoint.files import FileCheckpoint
from etl.spark.checkpoint.reader import open_checkpoint
from tests.support.data import taps
from tests.support.data.taps import NAME, assert_clean, declare, flat, in_force, land_all, recipe, silences
from tests.support.home import Home
from tests.support.oracle import Row


def test_timers_fire_once_over_batches_and_runs(home: Home) -> None:
    files = drawn()
    declare(home, body=recipe("timers"), sink="Append()", columns=taps.SILENCES)
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

    [state] = [one for one in read_state(home.place, home.pipeline(NAME), spark=home.spark) if one.keys]
    checkpoint = open_checkpoint(str(home.checkpoint(stream, NAME)), FileCheckpoint, sources=1)
    assert (state.batch, state.keys) == (checkpoint.commits[-1], len(last))


def test_a_record_without_a_time_is_held_and_stops_no_timer(home: Home) -> None:
    files = drawn()
    declare(home, body=recipe("timers"), sink="Append()", columns=taps.SILENCES, max_files=20, late="at")
    land_all(home, files)
    home.write(f"{NAME}/timeless.jsonl", '{"phone": "+450", "action": "call"}\n')
    assert home.run(NAME).reasons == {"late": 1}
    told, _ = silences([flat(files), []])
    assert in_force(home) == told
    assert_clean(home)


@pytest.mark.slow
def test_timeouts_of_groups_in_pandas_fire_as_timers_do(home: Home) -> None:
    files = drawn()
    declare(home, body=taps.IN_PANDAS, sink="Append()", columns=taps.SILENCES, max_files=2)
    land_all(home, files)
    home.run(NAME)
    told, _ = silences([*([*one, *other] for one, other in zip(files[::2], files[1::2], strict=True)), []])
    assert in_force(home) == told
    assert len(told) > 2
    assert home.reader(NAME).on_lake(system=()) == told
    assert_clean(home)


def test_timers_by_the_clock_fire_with_the_next_file_also_after_a_lost_checkpoint(home: Home) -> None:
    files = taps.taps(3, 20, seed=43)
    declare(home, body=taps.BY_THE_CLOCK, sink="Append()", columns=taps.SILENCES)
    for number, made in enumerate(files):
        taps.land(home, number, made)
        summary = home.run(NAME)
        assert summary.batches == 1, "a batch without files would be followed by another"
        wanted = taps.told_a_file_later(files[: number + 1])
        assert in_force(home) == wanted
        if number == 1:
            shutil.rmtree(home.checkpoint(summary.stream, NAME))
            home.recover(NAME)
    assert home.reader(NAME).on_lake(system=()) == wanted
    assert_clean(home)


FORGETFUL = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Counted(StatefulProcessor):
        def init(self, handle):
            self.known = handle.getValueState("known", "taps bigint", {ttl})

        def handleInputRows(self, key, rows, timerValues):
            known = self.known.get()[0] if self.known.exists() else 0
            self.known.update((known + len(list(rows)),))
            yield Row(phone=key[0], taps=self.known.get()[0])

    return df.groupBy("phone").transformWithState(Counted(), "phone string, taps bigint", "update", "ProcessingTime")
"""


@pytest.mark.parametrize(
    "max_files",
    [pytest.param(1, id="small batches"), pytest.param(2, id="large batches", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    "ttl",
    [pytest.param(1, id="a millisecond", marks=pytest.mark.slow), pytest.param(3_600_000, id="an hour")],
)
def test_a_state_is_forgotten_after_its_time_to_live(home: Home, ttl: int, max_files: int) -> None:
    files = taps.taps(4, 30, seed=44)
    columns = pa.schema([("phone", pa.string()), ("taps", pa.int64())])
    more = {"output_mode": "update", "max_files": max_files}
    declare(home, body=FORGETFUL.format(ttl=ttl), sink="Append()", columns=columns, **more)
    land_all(home, files)
    batches = [flat(files[first : first + max_files]) for first in range(0, 4, max_files)]
    assert home.run(NAME).batches == len(batches)
    told, known = Counter[Row](), Counter[Any]()
    for made in batches:
        now = Counter(tap.phone for tap in made)
        known = now if ttl == 1 else known + now
        told.update((phone, known[phone]) for phone in now)
    assert in_force(home) == told
    if ttl > 1:  # the same in the end, whatever the batches
        assert dict(sorted(in_force(home))) == Counter(tap.phone for tap in flat(files))
    assert_clean(home)


@pytest.mark.slow
def test_a_state_of_another_schema_is_told_and_made_anew(home: Home) -> None:
    files = drawn()
    declare(home, body=recipe("timers"), sink="Append()", columns=taps.SILENCES)
    land_all(home, files[:6])
    home.run(NAME)
    wider = recipe("timers").replace("seconds bigint", "seconds bigint, taps int")
    declare(home, body=wider.replace("((newest,))", "((newest, 1))").replace("(last,) =", "(last, _) ="),
            sink="Append()", columns=taps.SILENCES)  # fmt: skip
    land_all(home, files[6:], first=6)
    with pytest.raises(StateChanged, match=r"Existing value_schema=.*seconds.* and new .*taps.*") as stop:
        home.run(NAME)
    assert "restore the old transform" in stop.value.remedy
    assert "`sluice recover taps`" in stop.value.remedy
    home.recover(NAME)
    home.run(NAME)
    assert in_force(home) == silences([*files[:6], [], *files[6:], []])[0]
    assert_clean(home)


def test_a_shown_state_is_the_one_after_the_last_batch(home: Home) -> None:
    files = taps.taps(3, 30, seed=42)
    declare(home)
    land_all(home, files)
    home.run(NAME)
    [state] = read_state(home.place, home.pipeline(NAME), most=1000, spark=home.spark)
    found = Counter((row["key"]["action"], row["value"]["count"]) for row in state.rows)
    assert found == Counter((action, count) for (_, action, count, _) in taps.hourly(flat(files)))


def drawn() -> list[list[taps.Tap]]:
    return taps.falling_silent(taps.taps(10, 60, seed=41), after=5)
