"""A run ended in the middle of a batch, by a person, by Airflow or by a kill: delivered exactly once all the same."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
import pytest

from etl.airflow.local.stack import up
from etl.services.process import recall
from tests.support.airflow.in_a_batch import held_in_the_commit, wait_for_the_commit
from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.data.orders import NAME

GONE_WITHIN = 10  # seconds
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("delivered")]


def assert_gone(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, GONE_WITHIN)
    assert left == []


def end_in_a_batch(
    stack: Stack, begin: Callable[[], object], end: Callable[[psutil.Process], object]
) -> None:
    """Begin a try and end it within its transaction: `end` is called with the task's runner, and all of it is soon gone."""
    with held_in_the_commit(stack):
        begin()
        family = wait_for_the_commit(stack)
        runner = family[0].parent()
        assert runner is not None
        end(runner)
        assert_gone(family)


def tries(stack: Stack, run: str) -> list[tuple[int, int, bool]]:
    """Return number, clears before it and success of each try of the run."""
    query = (
        "SELECT try_number, clear_number, outcome IS NOT DISTINCT FROM 'done' FROM sluice.airflow_try"
        " WHERE dag_run_id = %s ORDER BY 1"
    )
    return [(number, clears, done) for number, clears, done in stack.home.ask(query, run)]


@pytest.mark.slow
def test_marked_failed_in_a_batch_or_cleared_in_one_it_is_gone_and_cleared_it_delivers_once(
    stack: Stack,
) -> None:
    stack.land()
    run = ""

    def begin() -> None:
        nonlocal run
        run = stack.run()

    end_in_a_batch(stack, begin, lambda _: stack.set_failed(run))
    end_in_a_batch(stack, lambda: stack.clear(run), lambda _: stack.clear(run))
    assert stack.ended(run) == "success"
    stack.assert_exactly_once()
    assert [(clears, done) for _, clears, done in tries(stack, run)] == [(0, False), (1, False), (2, True)]


@pytest.mark.slow
def test_after_a_task_runner_was_killed_and_after_a_timeout_the_retry_delivers_once(stack: Stack) -> None:
    stack.land()
    end_in_a_batch(stack, stack.run, psutil.Process.kill)
    # the clock of execution_timeout, an hour early
    end_in_a_batch(stack, lambda: None, lambda runner: runner.send_signal(signal.SIGALRM))
    run = next(iter(stack.api.runs(NAME)))
    assert stack.ended(run) == "success"
    stack.assert_exactly_once()
    assert "Process timed out" in stack.api.log(NAME, run, "run", 2)
    assert tries(stack, run) == [(1, 0, False), (2, 0, False), (3, 0, True)]


@pytest.mark.slow
@pytest.mark.parametrize("component", ["scheduler", "api-server"])
def test_after_a_component_was_killed_and_airflow_started_again_it_delivers_once(
    stack: Stack, component: str
) -> None:
    stack.land()
    with held_in_the_commit(stack):
        run = stack.run()
        wait_for_the_commit(stack)
        recalled = recall(stack.found.note(component))
        assert recalled is not None
        recalled[0].kill()
        recalled[0].wait(PATIENCE)
    stack.found = up(stack.home.place.settings)
    assert stack.ended(run) == "success"
    stack.assert_exactly_once()
    assert tries(stack, run)[-1][0] <= 2, "none is lost because no api-server answers yet"
