"""`sluice trigger` of a paused DAG with a schedule: nothing is left to wait."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

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
