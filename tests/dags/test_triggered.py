"""`sluice trigger` of a paused DAG with a schedule: one run, which the home page counts, and nothing is left to wait."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest

from etl.airflow.command.trigger import RunFailed, trigger
from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.data.orders import DECLARATION
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# A run of it fails before it starts Spark; while there is the file, it stays where it loads its pipeline.
HELD = """
import pathlib, sys, time
while sys.argv[1:3] == ["run", {name!r}] and pathlib.Path({file!r}).exists():
    time.sleep(0.1)
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


def test_what_the_schedule_made_meanwhile_and_waits_is_removed_with_the_pause(stack: Stack) -> None:
    name = "minutely"
    held = declare(stack, name, "* * * * *")
    held.touch()
    with triggered(stack, name) as said:
        try:
            until(
                lambda: states(stack, name) == ["queued", "running"],
                lambda: f"the next minute's run beside the one that runs: {stack.api.runs(name)}",
                patience=PATIENCE,
                every=0.5,
            )
            stack.api.pause(
                name
            )  # as somebody might: or the other begins in the moment in which the first one ends
        finally:
            held.unlink()
    assert states(stack, name) == ["failed"]
    assert stack.api.is_paused(name)
    assert not [line for line in said if "has begun" in line]
