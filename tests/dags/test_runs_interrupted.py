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


def ended_in_a_batch(stack: Stack, end: Callable[[str, psutil.Process], object]) -> str:
    """A run that is within its transaction when `end` is called with it and its task's runner: all of it is soon gone."""
    stack.land()
    with held_in_the_commit(stack):
        run = stack.run()
        family = wait_for_the_commit(stack)
        runner = family[0].parent()
        assert runner is not None
        end(run, runner)
        assert_gone(family)
    return run


def test_marked_failed_in_a_batch_it_is_gone_and_cleared_it_delivers_once(stack: Stack) -> None:
    run = ended_in_a_batch(stack, lambda run, _: stack.set_failed(run))
    stack.clear(run)
    assert stack.ended(run) == "success"
    stack.assert_exactly_once()
    tries = stack.home.ask(
        "SELECT clear_number, outcome = 'done' FROM sluice.airflow_try WHERE dag_run_id = %s ORDER BY try_number",
        run,
    )
    assert [number for number, _ in tries] == [0, 1]
    assert tries[-1][1]


def test_cleared_in_a_batch_it_is_gone_and_begins_anew_and_delivers_once(stack: Stack) -> None:
    run = ended_in_a_batch(stack, lambda run, _: stack.clear(run))
    assert stack.ended(run) == "success"
    stack.assert_exactly_once()


def test_after_a_task_runner_was_killed_the_retry_delivers_once(stack: Stack) -> None:
    run = ended_in_a_batch(stack, lambda _, runner: runner.kill())
    assert stack.ended(run) == "success"
    stack.assert_exactly_once()
    tries = stack.home.ask("SELECT try_number FROM sluice.airflow_try WHERE dag_run_id = %s ORDER BY 1", run)
    assert tries == [(1,), (2,)]


def test_timed_out_in_a_batch_it_is_gone_and_the_retry_delivers_once(stack: Stack) -> None:
    # the clock of execution_timeout, an hour early
    run = ended_in_a_batch(stack, lambda _, runner: runner.send_signal(signal.SIGALRM))
    assert stack.ended(run) == "success"
    stack.assert_exactly_once()
    assert "Process timed out" in stack.api.log(NAME, run, "run", 1)
    tries = stack.home.ask("SELECT try_number FROM sluice.airflow_try WHERE dag_run_id = %s ORDER BY 1", run)
    assert tries == [(1,), (2,)]


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
