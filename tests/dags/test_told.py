"""Each delivery is named by an asset event, also where a run fails after it has delivered."""

from __future__ import annotations

import pytest

from etl.airflow.told import PAGE
from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_what_a_run_delivered_that_was_marked_failed_before_it_had_ended_is_named_by_the_next_event(
    stack: Stack,
) -> None:
    """Between two of its own events there may be many that others made of the same assets."""
    assert [len(one["deliveries"]) for one in stack.told_by(stack.deliver())] == [1, 1]
    make_events(stack, PAGE + 1)
    stack.land()
    over = "UPDATE sluice.alert SET resolved_at = now(), resolved_by = 'ann' WHERE kind = 'quarantine' RETURNING 1"
    stack.home.ask(over)  # or the next one would be the same trouble, of which all know
    sent = len(stack.posted.found)
    with stack.posted.held:  # the alert of the rows that it holds is not answered
        failed = stack.run()
        until(
            lambda: any(one["kind"] == "quarantine" for one in stack.posted.found[sent:]),
            "the run's alert",
            patience=PATIENCE,
        )
        ended = "SELECT outcome FROM sluice.airflow_try WHERE dag_run_id = %s"
        assert stack.home.ask(ended, failed) == [("done",)], "its command has ended well"
        stack.set_failed(failed)
    assert stack.ended(failed) == "failed"
    succeeded = stack.deliver()
    assert stack.told_by(failed) == []
    told = stack.told_by(succeeded)
    numbers = "SELECT delivery_id FROM sluice.airflow_delivery WHERE dag_run_id IN (%s, %s) ORDER BY 1"
    wanted = [number for (number,) in stack.home.ask(numbers, failed, succeeded)]
    assert len(wanted) == 2
    assert [(one["deliveries"], one["batches"], one["rows"]) for one in told] == [(wanted, 2, 16)] * 2
    stack.assert_exactly_once()


def make_events(stack: Stack, count: int) -> None:
    """Make so many events of the pipeline's asset on the lake, as somebody may by Airflow's API."""
    [asset] = stack.call("GET", "/assets?uri_pattern=x-sluice://orders/lake")["assets"]
    for _ in range(count):
        stack.call("POST", "/assets/events", asset_id=asset["id"], extra={})
