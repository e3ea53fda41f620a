"""State of a user's own, with timers: a phone that is silent for two hours is told once the watermark says so."""

from __future__ import annotations

from collections import Counter

import pytest

from etl import kept
from etl.checkpoint import open_checkpoint
from etl.errors import CheckpointDamaged
from etl.recover import recover
from tests.spark import taps
from tests.spark.runs import Home
from tests.spark.taps import NAME, assert_clean, declare, flat, in_force, land_all, recipe, silences

IN_PANDAS = """
    import datetime as dt
    import pandas as pd
    from pyspark.sql.streaming.state import GroupStateTimeout

    def silence(key, frames, state):
        if state.hasTimedOut:
            (last,) = state.get
            state.remove()
            yield pd.DataFrame({"phone": [key[0]], "last": [dt.datetime.fromtimestamp(last, dt.UTC)]})
        else:
            newest = max(int(frame["at"].max().timestamp()) for frame in frames)
            newest = max(newest, *state.getOption) if state.exists else newest
            state.update((newest,))
            state.setTimeoutTimestamp((newest + 7200) * 1000)

    return df.withWatermark("at", "2 hours").groupBy("phone").applyInPandasWithState(
        silence, "phone string, last timestamp", "seconds bigint", "append", GroupStateTimeout.EventTimeTimeout)
"""


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

    [state] = [one for one in kept.read_state(home.place, home.pipeline(NAME), spark=home.spark) if one.keys]
    checkpoint = open_checkpoint(str(home.checkpoint(stream, NAME)), sources=1)
    assert (state.batch, state.keys) == (checkpoint.commits[-1], len(last))


def test_timeouts_of_groups_in_pandas_fire_as_timers_do(home: Home) -> None:
    files = drawn()
    declare(home, body=IN_PANDAS, sink="Append()", columns=taps.SILENCES, max_files=2)
    land_all(home, files)
    home.run(NAME)
    told, _ = silences([*([*one, *other] for one, other in zip(files[::2], files[1::2], strict=True)), []])
    assert in_force(home) == told
    assert len(told) > 2
    assert home.reader(NAME).on_lake(system=()) == told
    assert_clean(home)


def test_a_state_of_another_schema_is_told_and_made_anew(home: Home) -> None:
    files = drawn()
    declare(home, body=recipe("timers"), sink="Append()", columns=taps.SILENCES)
    land_all(home, files[:6])
    home.run(NAME)
    wider = recipe("timers").replace("seconds bigint", "seconds bigint, taps int")
    declare(home, body=wider.replace("((newest,))", "((newest, 1))").replace("(last,) =", "(last, _) ="),
            sink="Append()", columns=taps.SILENCES)  # fmt: skip
    land_all(home, files[6:], first=6)
    with pytest.raises(CheckpointDamaged, match="sluice recover taps"):
        home.run(NAME)
    recover(home.place, home.pipeline(NAME), spark=home.spark)
    home.run(NAME)
    assert in_force(home) == silences([*files[:6], [], *files[6:], []])[0]
    assert_clean(home)


def test_a_shown_state_is_the_one_after_the_last_batch(home: Home) -> None:
    files = taps.taps(3, 30, seed=42)
    declare(home)
    land_all(home, files)
    home.run(NAME)
    [state] = kept.read_state(home.place, home.pipeline(NAME), most=1000, spark=home.spark)
    found = Counter((row["key"]["action"], row["value"]["count"]) for row in state.rows)
    assert found == Counter((action, count) for (_, action, count, _) in taps.hourly(flat(files)))


def drawn() -> list[list[taps.Tap]]:
    return taps.falling_silent(taps.taps(10, 60, seed=41), after=5)
