"""Whole runs, killed with SIGKILL and run again: both sinks have each batch whole and once, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from etl.steps import Step
from tests.crash.killed import PATIENCE, Runs, assert_none_left, kill, kill_jvm, processes_of
from tests.oracle import Rows
from tests.spark import taps
from tests.spark.runs import Home, Landed, orders
from tests.spark.taps import Tap

DRIVER, JVM = "the driver", "its JVM alone"
NO_TABLE = None  # readers see none yet

# (step, in which batch, batches that readers see afterwards, what is killed): each run goes on from the last
KILLS = (
    ("lease-taken", 0, NO_TABLE, DRIVER),
    ("attempt-opened", 0, 0, DRIVER),
    ("object-opened", 0, 0, DRIVER),  # on an executor, as rows-copied and task-committed
    ("rows-copied", 0, 0, DRIVER),
    ("committed", 0, 1, DRIVER),  # batch 0 is committed, and Spark has not marked it as done
    ("task-committed", 1, 1, JVM),
    ("staged", 1, 1, DRIVER),
    ("rows-merged", 1, 1, DRIVER),  # its transaction is under way
    ("quarantine-merged", 1, 2, JVM),  # so it is, and needs no JVM to come to its end
    ("judged", 2, 2, DRIVER),
    ("manifest-written", 2, 2, DRIVER),
    ("pipeline-locked", 2, 2, DRIVER),
    ("inputs-inserted", 2, 2, DRIVER),
    ("pointer-swapped", 2, 2, DRIVER),
    ("pointer-drafted", 3, 3, DRIVER),  # batch 2 is done by the same run
    ("delivery-inserted", 3, 3, DRIVER),
    ("quality-inserted", 3, 3, DRIVER),
    ("batch-done", 3, 4, DRIVER),  # after the last batch there is nothing but Spark's mark
)
BATCHES = 4


def test_every_step_of_the_code_has_its_kill() -> None:
    assert {step for step, *_ in KILLS} == {str(step) for step in Step}


@pytest.mark.timeout(1800)
def test_a_run_killed_at_any_point_is_finished_by_the_next_one(runs: Runs) -> None:
    batches = landed_batches(runs.home)
    delivered = 0
    for step, batch, visible, victim in KILLS:
        marker = runs.folder / f"{step}.marker"
        process = runs.start(step, batch - delivered)
        stopped = runs.wait_for_step(process)
        assert marker.exists()
        if victim == JVM:
            kill_jvm(process, stopped, runs)
        else:
            kill(process, stopped)
        marker.unlink()  # of every worker: none lives that could write it again
        runs.forget()
        if visible is NO_TABLE:
            assert runs.home.ask("SELECT to_regclass('warehouse.orders')") == [(None,)]
        else:
            runs.home.assert_rows(sum(batches[:visible], Landed()))
            delivered = visible
    last = runs.start("none", 0)
    assert last.wait(PATIENCE) == 0, runs.log
    assert_none_left(processes_of(last))
    runs.home.assert_holds(sum(batches, Landed()))
    assert runs.home.ask("SELECT batch_id FROM sluice.delivery ORDER BY commit_seq") == [
        (n,) for n in range(BATCHES)
    ]
    runs.home.assert_clean()


# (step, in which batch, batches delivered afterwards), of a pipeline that keeps state
STATE_KILLS = (
    ("rows-copied", 0, 0),  # on an executor, whose part of the state is not written
    ("staged", 1, 1),  # all of it is
    ("committed", 2, 3),  # batch 2 is delivered, and Spark has not marked it as done
    ("pointer-swapped", 3, 3),
    ("batch-done", 4, 5),
)


# every one of them, in a batch that goes on from three others
STATE_KILLS_AT_EVERY_STEP = (
    ("batch-done", 2, 3),
    *((step.value, 3, 3) for step in list(Step)[: list(Step).index(Step.COMMITTED)]),
    ("committed", 3, 4),
    ("batch-done", 4, 5),
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kills",
    [STATE_KILLS, pytest.param(STATE_KILLS_AT_EVERY_STEP, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_state_is_as_if_no_run_had_been_killed(runs: Runs, kills: Sequence[tuple[str, int, int]]) -> None:
    files = taps.taps(14, 40, seed=21)
    taps.declare(runs.home)
    taps.land_all(runs.home, files)
    delivered = 0
    for step, batch, delivered_then in kills:
        process = runs.start(step, batch - delivered, taps.NAME)
        stopped = runs.wait_for_step(process)
        kill(process, stopped)
        runs.forget()
        delivered = delivered_then
        assert runs.home.ask("SELECT count(*) FROM sluice.delivery") == [(delivered,)], step
        assert taps.in_force(runs.home) == taps.hourly(taps.flat(files[:delivered])), step
    last = runs.start("none", 0, taps.NAME)
    assert last.wait(PATIENCE) == 0, runs.log
    assert taps.in_force(runs.home) == taps.hourly(taps.flat(files))
    taps.assert_clean(runs.home)
    [(stream,)] = runs.home.ask("SELECT stream_id::text FROM sluice.stream")
    snapshots = runs.home.checkpoint(stream, taps.NAME).glob("state/0/*/*.zip")
    assert {one.parent.name for one in snapshots} >= {"0", "1"}, (
        "else a run reads the changes of all before it"
    )


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A transform that keeps state, and what it makes of files of taps."""

    body: str
    columns: pa.Schema
    wanted: Callable[[Sequence[Sequence[Tap]]], Rows]
    sink: str = "Append()"


KEPT = {
    "doubles": Kept(
        body=taps.recipe("doubles"),
        columns=taps.TAPS,
        wanted=lambda files: taps.rows(set(taps.flat(files))),
    ),
    "joins": Kept(
        body=taps.recipe("joins").replace("leftOuter", "inner"),
        columns=taps.OPENINGS,
        wanted=lambda files: taps.paid(taps.flat(files)),
    ),
    "timers": Kept(
        body=taps.recipe("timers"),
        columns=taps.SILENCES,
        wanted=lambda files: taps.silences([*files, []])[0],
    ),
    "timeouts": Kept(
        body=taps.IN_PANDAS,
        columns=taps.SILENCES,
        wanted=lambda files: taps.silences([*files, []])[0],
    ),
    "times to live": Kept(body=taps.FIRST_SEEN, columns=taps.SILENCES, wanted=taps.first_seen),
    "timers by the clock": Kept(body=taps.BY_THE_CLOCK, columns=taps.SILENCES, wanted=taps.told_a_file_later),
    "sessions": Kept(body=taps.SESSIONS, columns=taps.SESSION_COLUMNS, wanted=taps.sessions_over),
    "complete": Kept(
        body=taps.ROLLUP,
        columns=taps.ROLLUP_COLUMNS,
        wanted=lambda files: taps.rolled_up(taps.flat(files)),
        sink="Replace()",
    ),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_state_of_every_kind_goes_on_after_a_kill(runs: Runs, spark: SparkSession, kept: Kept) -> None:
    """Killed where it hurts most: a batch is in both sinks, and Spark has marked neither it nor its state."""
    files = taps.falling_silent(taps.taps(7, 40, seed=22), after=2)
    if kept is KEPT["doubles"]:
        files = [made + made[:5] for made in files]
    taps.declare(runs.home, body=kept.body, sink=kept.sink, columns=kept.columns)
    taps.land_all(runs.home, files)
    process = runs.start("committed", 3, taps.NAME)
    kill(process, runs.wait_for_step(process))
    runs.forget()
    replace(runs.home, spark=spark).run(taps.NAME)
    assert taps.in_force(runs.home) == kept.wanted(files)
    assert taps.in_force(runs.home).total() > 5
    taps.assert_clean(runs.home)


# (step of a replay, whether it has taken the place of what it replays)
REPLAY_KILLS = (
    ("rows-copied", False),  # on an executor
    ("rows-merged", False),  # its transaction is under way, and what it replaces is out
    ("committed", True),
)


@pytest.mark.timeout(600)
def test_a_replay_killed_at_any_point_has_replaced_all_or_nothing(runs: Runs, spark: SparkSession) -> None:
    home = replace(runs.home, spark=spark)
    landed = sum(landed_batches(home), Landed())
    home.run()
    in_force = "SELECT delivery_id, kind FROM sluice.delivery WHERE live ORDER BY commit_seq"
    before = home.ask(in_force)
    assert len(before) == BATCHES
    for step, replaced in REPLAY_KILLS:
        process = runs.start(step, 0, how="replay")
        kill(process, runs.wait_for_step(process))
        runs.forget()
        home.assert_rows(landed)
        found = home.ask(in_force)
        if replaced:
            assert [kind for _, kind in found] == ["replay"]
        else:
            assert found == before
    landed += home.land("orders/late.jsonl", orders(900, 5))
    home.run()
    home.assert_holds(landed)
    home.assert_clean()


def landed_batches(home: Home) -> list[Landed]:
    """What each batch is to consist of: one file of each source, in the order of their times."""
    found = []
    for number in range(BATCHES):
        start = number * 100
        batch = home.land(f"orders/{number}.jsonl", orders(start, 9, negative=[start + 4]), ["{broken"])
        batch += home.land(f"orders/{number}.csv", orders(start + 50, 5))
        for kind in ("jsonl", "csv"):
            os.utime(home.landing / f"orders/{number}.{kind}", (1_600_000_000 + number,) * 2)
        found.append(batch)
    return found
