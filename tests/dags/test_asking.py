"""A parked task that Airflow resumes: with an answer, or to look whether its question is settled."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskAwaitingInput

from etl.airflow.questions.asking import LOOKS_EVERY, Asked, AsksAPerson, answer_of
from etl.airflow.questions.question import (
    LEAVING,
    RETRY,
    TAKE_READABLE,
    Answer,
    Question,
    QuestionCall,
    SeenStop,
)
from etl.airflow.retries import Answered, NeedsPerson, RunFailed, TryLater

STOP = SeenStop(stream="s", batch=7, stopped_at="2026-01-01T00:00:00+00:00")
QUESTION = Question(subject="what?", body="", choices=(TAKE_READABLE, RETRY, LEAVING), stop=STOP)
CONTEXT: Any = {"ti": SimpleNamespace(try_number=1, max_tries=9)}
NOBODY = {"error": "nobody has answered", "error_type": "timeout"}


class Task(AsksAPerson):
    """Asks no ledger: its command says what the test has it say."""

    pipeline, answer_within, deciders, retry_policy = "orders", timedelta(days=1), {}, None
    log = logging.getLogger("sluice")

    def __init__(self, done: str | RunFailed | None) -> None:
        self.done, self.calls = done, list[QuestionCall]()

    def question(self, call: QuestionCall) -> Mapping[str, Any]:
        self.calls.append(QuestionCall.parse(call.json()))
        if isinstance(self.done, RunFailed):
            raise self.done
        return {"done": self.done}


def asked(left: timedelta) -> dict[str, Any]:
    return Asked(question=QUESTION, until=datetime.now(UTC) + left).json()


def answered(title: str, why: str = "so", who: Any = None) -> dict[str, Any]:
    return {
        "chosen_options": [title],
        "params_input": {"why": why},
        "responded_by_user": who or {"id": "3", "name": "ada"},
    }


@pytest.mark.parametrize("left", [timedelta(hours=5), timedelta(minutes=3)])
def test_a_question_that_nobody_has_answered_yet_waits_on_and_looks_again(left: timedelta) -> None:
    task = Task(None)
    with pytest.raises(TaskAwaitingInput) as parked:
        task.answered(CONTEXT, NOBODY, asked(left))
    assert parked.value.method_name == "answered"
    assert parked.value.kwargs is not None
    assert Question.from_json(parked.value.kwargs["asked"]["question"]) == QUESTION
    assert min(left, LOOKS_EVERY) - timedelta(seconds=5) < parked.value.timeout <= min(left, LOOKS_EVERY)
    assert task.calls == [QuestionCall(stop=STOP)]


def test_a_question_that_is_settled_elsewhere_lets_the_run_go_on_though_its_time_is_over() -> None:
    with pytest.raises(Answered, match="bob decided"):
        Task("bob decided").answered(CONTEXT, NOBODY, asked(timedelta(seconds=-1)))


def test_a_question_that_nobody_answers_in_time_fails_the_run() -> None:
    with pytest.raises(NeedsPerson, match="Nobody has answered within 1 day"):
        Task(None).answered(CONTEXT, NOBODY, asked(timedelta(seconds=-1)))


def test_an_answer_is_done_by_the_command_in_the_name_of_who_gave_it() -> None:
    task = Task("it is held")
    with pytest.raises(Answered, match="ada answered; it is held"):
        task.answered(CONTEXT, answered(TAKE_READABLE.title), asked(timedelta(1)))
    assert task.calls == [
        QuestionCall(stop=STOP, answer=Answer(action="quarantine-all", who="ada", why="so"))
    ]


def test_an_answer_that_no_service_is_there_for_is_kept_and_done_later() -> None:
    away = Task(TryLater("PostgreSQL is away"))
    with pytest.raises(TaskAwaitingInput) as parked:
        away.answered(CONTEXT, answered(TAKE_READABLE.title), asked(timedelta(1)))
    assert parked.value.kwargs is not None
    back = Task("it is held")
    with pytest.raises(Answered, match="ada answered; it is held"):
        back.answered(CONTEXT, NOBODY, **parked.value.kwargs)
    assert back.calls == away.calls


def test_a_look_at_a_ledger_that_is_away_is_made_again_later() -> None:
    with pytest.raises(TaskAwaitingInput):
        Task(TryLater("PostgreSQL is away")).answered(CONTEXT, NOBODY, asked(timedelta(1)))


@pytest.mark.parametrize(("choice", "ends"), [(RETRY, Answered), (LEAVING, NeedsPerson)])
def test_what_decides_nothing_asks_no_command(choice: Any, ends: type[Exception]) -> None:
    task = Task("no")
    with pytest.raises(ends, match="ada"):
        task.answered(CONTEXT, answered(choice.title), asked(timedelta(1)))
    assert task.calls == []


@pytest.mark.parametrize(
    "event",
    [
        answered(RETRY.title, why="  "),
        answered("Deliver all"),
        {**answered(RETRY.title), "responded_by_user": None},
        {**answered(RETRY.title), "chosen_options": [RETRY.title, LEAVING.title]},
    ],
)
def test_what_is_no_answer_is_taken_for_none(event: dict[str, Any]) -> None:
    assert answer_of(event, QUESTION) is None
