"""`sluice trigger` of a paused DAG with a schedule: one run, which the home page counts, and nothing is left to wait.

And a run that a flag starts, which lands with the files.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest

from etl.airflow.api import ENDED
from etl.airflow.command.trigger import RunFailed, trigger
from etl.common.errors import SetupError
from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.data.orders import DECLARATION
from tests.support.forked import Forked
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# A run of it fails before it starts Spark; while there is the file, it ends where it loads its pipeline as in an outage, or
# waits there for the file's lock.
HELD = """
import fcntl, os, pathlib, sys
if sys.argv[1:3] == ["run", {name!r}] and pathlib.Path({file!r}).exists():
    with open({file!r}) as held:
        if "away" in held.read():
            os._exit(75)
        fcntl.flock(held, fcntl.LOCK_SH)
"""
# As docs/airflow.md has it: an asset that Airflow watches.
ARRIVED = """
def arrived():
    from airflow.providers.standard.triggers.file import FileDeleteTrigger
    from airflow.sdk import Asset, AssetOrTimeSchedule, AssetWatcher, CronTriggerTimetable

    flag = FileDeleteTrigger(filepath={flag!r}, poke_interval=1)
    watched = Asset("files have landed", watchers=[AssetWatcher(name="arriving.ready", trigger=flag)])
    hourly = CronTriggerTimetable("0 * * * *", timezone="UTC")
    return AssetOrTimeSchedule(timetable=hourly, assets=[watched])
"""


def declare(stack: Stack, name: str, schedule: str) -> Path:
    """Declare a pipeline without a suite that is there; return the file that holds its runs."""
    held = stack.home.root / f"hold {name}"
    text = DECLARATION.format(name=name, max_files=None, share=1.0)
    text = text.replace('suite="orders"', f'suite="not_there", schedule="{schedule}"')
    stack.home.declare(name, text=text + HELD.format(name=name, file=str(held)))
    stack.home.make_folder(name)
    stack.wait_for_dag(name)
    assert stack.api.is_paused(name)
    return held


@contextmanager
def holding(held: Path) -> Iterator[None]:
    """Keep each run where it loads its pipeline, until the block ends."""
    with held.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            held.unlink()
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked meanwhile has the file open, too


def failures(stack: Stack) -> tuple[int, int]:
    """Return what Airflow's home page counts as failed: runs of the last day, and DAGs."""
    since = urlencode({"start_date": (datetime.now(UTC) - timedelta(days=1)).isoformat()})
    runs = stack.api.get(f"/ui/dashboard/historical_metrics_data?{since}")
    return runs["dag_run_states"]["failed"], stack.api.get("/ui/dashboard/dag_stats")["failed_dag_count"]


@contextmanager
def triggered(stack: Stack, name: str) -> Iterator[list[str]]:
    """Trigger the pipeline beside the block, and require that its run fails; what the command said is in the list."""
    said: list[str] = []
    with ThreadPoolExecutor() as beside:
        asked = beside.submit(trigger, stack.api, name, said.append)
        yield said
        with pytest.raises(RunFailed):
            asked.result(PATIENCE)


def interrupted(stack: Stack, name: str, state: str) -> str:
    """End `sluice trigger` by Ctrl-C once the task of its run is in this state; return what it said."""
    out = stack.home.root / f"{name}.out"
    command = Forked.start(
        "etl.cli", ["trigger", name], environment=stack.home.environment, folder=stack.home.root, out=out
    )

    def seen() -> list[str | None]:
        return [task.state for run in stack.api.runs(name) for task in stack.api.tasks(name, run)]

    try:
        until(
            lambda: seen() == [state],
            lambda: f"the task {state}, and not {seen()}: {out.read_text()}",
            patience=PATIENCE,
            every=0.5,
        )
        os.kill(command.pid, signal.SIGINT)
        assert command.wait(PATIENCE) == 128 + signal.SIGINT
    finally:
        command.process.kill()
    assert stack.api.is_paused(name)
    return " ".join(out.read_text().split())


def states(stack: Stack, name: str) -> list[str]:
    return sorted(stack.api.runs(name).values())


def test_a_paused_dag_runs_once_and_what_failed_is_on_the_home_page(stack: Stack) -> None:
    name = "daily"
    declare(stack, name, "@daily")
    assert stack.api.due(name) is not None, "unpaused, it begins with what its schedule owes"
    runs, dags = failures(stack)
    for times in (1, 2):  # the second finds the place of the run that is owed taken
        with triggered(stack, name):
            pass
        assert stack.api.is_paused(name)
        assert states(stack, name) == ["failed"] * times
        assert failures(stack) == (runs + times, dags + 1)


def test_a_paused_dag_in_which_a_backfill_waits_is_left_alone(stack: Stack) -> None:
    name = "filled"
    declare(stack, name, "@daily")
    days = {"from_date": "2020-01-03T00:00:00Z", "to_date": "2020-01-04T00:00:00Z"}
    asked = {**days, "dag_id": name, "max_active_runs": 1, "reprocess_behavior": "completed"}
    stack.call("POST", "/backfills", **asked)
    with pytest.raises(SetupError, match=r"is paused, and 2 runs of a backfill wait in it"):
        trigger(stack.api, name, print)
    assert stack.api.is_paused(name)
    assert states(stack, name) == ["queued"] * 2


def test_what_the_schedule_made_meanwhile_and_waits_is_removed_with_the_pause(stack: Stack) -> None:
    name = "minutely"
    held = declare(stack, name, "* * * * *")
    with triggered(stack, name) as said, holding(held):
        until(
            lambda: states(stack, name) == ["queued", "running"],
            lambda: f"the next minute's run beside the one that runs: {stack.api.runs(name)}",
            patience=PATIENCE,
            every=0.5,
        )
        # As somebody might: or the other begins in the moment in which the first one ends.
        stack.api.pause(name)
    assert states(stack, name) == ["failed"]
    assert stack.api.is_paused(name)
    assert not [line for line in said if "has begun" in line]


def test_ctrl_c_while_the_run_waits_for_another_try_marks_it_failed(stack: Stack) -> None:
    name = "away"
    held = declare(stack, name, "@daily")
    held.write_text("away")
    said = interrupted(stack, name, "up_for_retry")
    assert "waited for another try or an answer, and no paused DAG goes on; it is marked failed" in said
    assert states(stack, name) == ["failed"]
    held.unlink()
    with triggered(stack, name):  # which waits for no other
        pass
    assert states(stack, name) == ["failed", "failed"]


def test_ctrl_c_while_the_run_is_at_work_leaves_it_to_the_end_of_its_try(stack: Stack) -> None:
    name = "at_work"
    held = declare(stack, name, "@daily")
    with holding(held):
        said = interrupted(stack, name, "running")
        assert "has begun, and goes on to the end of its try" in said
        [run] = stack.api.runs(name)
        assert stack.api.state(name, run) not in ENDED
    assert stack.ended(run, name) == "failed"


def test_ctrl_c_before_the_run_has_made_a_try_removes_it(stack: Stack) -> None:
    name = "not_begun"
    declare(stack, name, "@daily")
    stack.call("POST", "/pools", name=f"sluice_{name}", slots=0)  # so its task stays where it is
    said = interrupted(stack, name, "scheduled")
    assert "the run" not in said
    assert states(stack, name) == []


@pytest.mark.slow
def test_a_flag_that_lands_starts_a_run_each_time(stack: Stack) -> None:
    name, flag = "arriving", stack.home.root / "arriving.ready"
    text = DECLARATION.format(name=name, max_files=None, share=1.0)
    text = text.replace('suite="orders"', 'suite="not_there", schedule=arrived')  # so its runs start no Spark
    stack.home.declare(name, text=ARRIVED.format(flag=str(flag)) + text)
    stack.home.make_folder(name)
    stack.wait_for_dag(name)
    stack.api.unpause(name)

    def started() -> list[str]:
        return [run for run in stack.api.runs(name) if run.startswith("asset_triggered__")]

    for times in (1, 2):
        flag.touch()
        until(lambda: len(started()) == times, f"run {times} of a flag", patience=PATIENCE, every=0.5)  # noqa: B023
        assert not flag.exists()
        for run in started():
            assert stack.ended(run, name) == "failed"
