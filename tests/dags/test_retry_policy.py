"""Which failures are tried again, how often and after what pause."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from etl.airflow.operator import failure
from etl.airflow.process import Finished
from etl.airflow.retries import (
    STEADY,
    Answered,
    DifferencesFound,
    Ended,
    NoTriesLeft,
    Retries,
    RunFailed,
    kept_up,
    note_wait,
)


def failed(code: int, up: timedelta = timedelta(0)) -> RunFailed:
    return failure(Finished(exit_code=code, printed="", result=None, said=()), up=up)


class TriesOfATask:
    """Tries of a task as Airflow counts them: its state store outlives a try, and a clear raises `max_tries`."""

    def __init__(self, policy: Retries) -> None:
        self.policy, self.number, self.most = policy, 1, policy.tries_again
        store: dict[str, Any] = {}
        keep = SimpleNamespace(get=store.get, set=store.__setitem__)
        self.context: Any = {"task_state_store": keep, "ti": self}

    @property
    def try_number(self) -> int:
        return self.number

    @property
    def max_tries(self) -> int:
        return self.most

    def end(self, *codes: int) -> list[int | None]:
        """End a try with each code; return the minutes until the next one, None where there is none."""
        minutes: list[int | None] = []
        for code in codes:
            self.policy.require_one_left(self.context)
            if code == 75:
                note_wait(self.context)
            decision = self.policy.evaluate(failed(code), self.number, self.most, self.context)
            delay = decision.retry_delay
            again = decision.action.value == "retry" and self.number <= self.most
            minutes.append(int(delay.total_seconds() / 60) if again and delay else None)
            self.number += 1
        return minutes

    def clear(self) -> None:
        self.most = self.number - 1 + self.policy.tries_again


@pytest.fixture
def tries() -> TriesOfATask:
    return TriesOfATask(Retries(retries=3, retry_delay=timedelta(minutes=1)))


@pytest.mark.parametrize("code", [2, 3, 4])
def test_what_a_person_must_mend_is_not_tried_again(tries: TriesOfATask, code: int) -> None:
    assert tries.end(code) == [None]


def test_a_failure_is_tried_again_as_often_as_declared_whatever_was_waited_for(tries: TriesOfATask) -> None:
    assert tries.end(70, 143, 75, 70, 75, 75, 75, 70) == [1, 2, 2, 4, 4, 8, 16, None]
    tries.clear()
    assert tries.end(70, 75, 70, 70, 70) == [1, 2, 2, 4, None]


def test_an_outage_is_waited_for_with_growing_pauses_for_hours_and_not_for_ever(tries: TriesOfATask) -> None:
    assert tries.end(70, 70) == [1, 2]
    assert tries.end(*[75] * 25) == [2, 4, 8, 16, *[30] * 20, None]
    tries.clear()
    assert tries.end(75) == [2]


def test_what_a_person_answered_is_done_at_once_and_is_no_declared_retry(tries: TriesOfATask) -> None:
    for policy in (tries.policy, kept_up(timedelta(minutes=1))):
        decision = policy.evaluate(Answered("ada"), 1, tries.most, tries.context)
        assert (decision.action.value, decision.retry_delay) == ("retry", timedelta(seconds=1))
    for _ in range(5):
        note_wait(tries.context)
        tries.number += 1
    assert tries.end(70, 70, 70, 70) == [1, 2, 4, None]


def test_workers_that_are_killed_use_up_the_declared_retries_and_no_more(tries: TriesOfATask) -> None:
    """Airflow asks no policy about them, and has the number of all tries alone."""
    assert tries.end(75) == [2]
    tries.number += 4
    with pytest.raises(NoTriesLeft, match="4 tries have failed, the last without a word, and 3 retries"):
        tries.end(70)
    error = NoTriesLeft("4 tries")
    assert tries.policy.evaluate(error, tries.number, tries.most, tries.context).action.value == "fail"


def test_an_audit_that_finds_a_difference_is_not_tried_again_and_one_that_can_not_look_is(
    tries: TriesOfATask,
) -> None:
    found = tries.policy.evaluate(DifferencesFound("audit"), 1, tries.most, tries.context)
    assert found.action.value == "fail"
    assert tries.end(1, 75) == [1, 2], "of an audit that came to no end"


def test_only_what_a_person_must_mend_ends_a_followed_run_for_good() -> None:
    policy = kept_up(timedelta(seconds=20))

    def decided(code: int, up: timedelta = timedelta(0)) -> Any:
        return policy.evaluate(failed(code, up), 500, 100_000)

    codes = (2, 3, 4, 70, 75, 137, 143)
    for up in (timedelta(0), STEADY):
        assert [code for code in codes if decided(code, up).action.value == "fail"] == [2, 3, 4]
    assert policy.evaluate(Ended("cleared"), 1, 100_000).action.value == "default"
    # by Airflow's own delays, which grow with each try; but for one that had been up for long
    assert {decided(code).action.value for code in codes[3:]} == {"default"}
    again = [decided(code, STEADY) for code in codes[3:]]
    assert {(one.action.value, one.retry_delay) for one in again} == {("retry", timedelta(seconds=20))}
