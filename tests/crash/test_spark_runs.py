"""Whole runs, killed with SIGKILL and run again: both sinks have each batch whole and once, or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from etl.common.steps import Step
from tests.support.data.orders import Landed, orders
from tests.support.home import Home
from tests.support.killed.runs import PATIENCE, Runs, assert_none_left, kill, kill_jvm, processes_of

DRIVER, JVM = "the driver", "its JVM alone"
NO_TABLE = None  # readers see none yet

Kill = tuple[str, int, int | None, str]
# (step, in which batch, batches that readers see afterwards, what is killed): each run goes on from the last
KILLS_AT_EVERY_STEP: tuple[Kill, ...] = (
    ("lease-taken", 0, NO_TABLE, DRIVER),
    ("attempt-opened", 0, 0, DRIVER),
    ("object-opened", 0, 0, DRIVER),  # on an executor, as rows-encoded and task-committed
    ("rows-encoded", 0, 0, DRIVER),
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
SOME = ("rows-encoded", "committed")
KILLS = [kill for kill in KILLS_AT_EVERY_STEP if kill[0] in SOME]
BATCHES = 4


def test_every_step_of_the_code_has_its_kill() -> None:
    # rows as few as these stay in the report; test_crash_matrix.py kills where others are staged, and copied
    steps = {str(step) for step in Step if step not in (Step.ROWS_STAGED, Step.ROWS_COPIED)}
    assert {step for step, *_ in KILLS_AT_EVERY_STEP} == steps


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "kills",
    [KILLS, pytest.param(KILLS_AT_EVERY_STEP, marks=pytest.mark.slow)],
    ids=["some steps", "every step"],
)
def test_a_run_killed_at_any_point_is_finished_by_the_next_one(runs: Runs, kills: Sequence[Kill]) -> None:
    batches = landed_batches(runs.home)
    delivered = 0
    for step, batch, visible, victim in kills:
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


# (step of a replay, whether it has taken the place of what it replays)
REPLAY_KILLS = (
    ("rows-encoded", False),  # on an executor
    ("rows-merged", False),  # its transaction is under way, and what it replaces is out
    ("committed", True),
)


@pytest.mark.slow
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
    """Land the files and return what each batch is to consist of: one file of each source, in the order of their times."""
    found = []
    for number in range(BATCHES):
        start = number * 100
        batch = home.land(f"orders/{number}.jsonl", orders(start, 9, negative=[start + 4]), ["{broken"])
        batch += home.land(f"orders/{number}.csv", orders(start + 50, 5))
        for kind in ("jsonl", "csv"):
            os.utime(home.landing / f"orders/{number}.{kind}", (1_600_000_000 + number,) * 2)
        found.append(batch)
    return found
