"""Parks a task until a person has answered its question, in Airflow's state `awaiting_input`; no triggerer is needed.

Airflow resumes the task with the answer, or after the timeout that it was parked with. That is a short one: what is
settled meanwhile by a command, Airflow does not hear of, so the task looks now and then.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from etl.airflow.alerts import QUESTION
from etl.airflow.links import page_of_stop, question_link
from etl.airflow.log_lines import harmless
from etl.airflow.questions.question import AGAIN, LEAVE, Answer, Question, QuestionCall
from etl.airflow.retries import Answered, NeedsPerson, Retries, RunFailed, TryLater, note_wait

if TYPE_CHECKING:
    from airflow.sdk import Context

    from etl.airflow.task_try import TaskTry

LOOKS_EVERY = dt.timedelta(minutes=10)  # whether somebody has decided elsewhere
AWAY = dt.timedelta(minutes=1)  # until an answer is tried again that no service was there for
LONGEST_WHY = 2000  # characters


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question that waits, as it is kept with the parked task."""

    question: Question
    until: dt.datetime

    def json(self) -> dict[str, Any]:
        return {"question": self.question.json(), "until": self.until.isoformat()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Asked:
        return cls(
            question=Question.from_json(content["question"]),
            until=dt.datetime.fromisoformat(content["until"]),
        )

    @property
    def is_over(self) -> bool:
        """Tell whether nobody has answered in time."""
        return dt.datetime.now(dt.UTC) >= self.until


class AsksAPerson:
    """What the operator of runs has to ask a person, and to go on by the answer."""

    # the operator's own
    pipeline: str
    answer_within: dt.timedelta | None  # None: nobody is asked
    deciders: Mapping[str, str]  # id by name, of who may answer; nobody named: whoever has Airflow's right to
    log: Any
    retry_policy: Any

    def question(self, call: QuestionCall) -> Mapping[str, Any]:
        """Have `sluice question` do what is called for, and return what it printed. Raises what its exit code means."""
        raise NotImplementedError

    def tell(self, kind: str, text: str) -> None:
        raise NotImplementedError

    def ask(self, task_try: TaskTry, context: Context) -> None:
        """Park the task with what its try has left to a person; return where that is no question.

        Raises TaskAwaitingInput.
        """
        if self.answer_within is None:
            return
        try:
            content = self.question(QuestionCall(task_try=task_try, page=page_of_stop(self.pipeline))).get(
                "question"
            )
        except RunFailed as error:
            self.log.warning("nobody could be asked: %s", error)
            return
        if content is None:
            return
        question, ti = Question.from_json(content), context["ti"]
        put(question, context, self.deciders)
        address = question_link(ti.dag_id, ti.run_id, ti.task_id)
        self.tell("question", QUESTION.format(subject=question.subject, address=address))
        park(Asked(question=question, until=dt.datetime.now(dt.UTC) + self.answer_within))

    def answered(
        self,
        context: Context,
        event: Mapping[str, Any],
        asked: Mapping[str, Any],
        given: Mapping[str, str] | None = None,
    ) -> NoReturn:
        """Do what a person answered, when Airflow resumes the parked task; the next try goes on at once.

        Airflow resumes it now and then without an answer: then it is parked again, unless the question is settled. So it is
        while a service is away, with the answer that was `given`, if there is one.
        Raises Answered, TaskAwaitingInput, or NeedsPerson where the run is left as it is or nobody has answered in time.
        """
        waiting = Asked.from_json(asked)
        question = waiting.question
        answer = Answer(**given) if given else answer_of(event, question)
        if answer is None and "error" in event:
            self._look(waiting, context)
        if answer is None:
            self.log.warning("the answer has no reason, or is none of the choices; it is asked again")
            put(question, context, self.deciders)
            park(waiting)
        who, why = harmless(answer.who), harmless(answer.why)
        self.log.info("%s answered: %s (%s)", who, answer.action, why)
        if answer.action == LEAVE:
            raise NeedsPerson(f"{who} left it as it is: {why}")
        if answer.action == AGAIN:
            self._go_on(f"{who} has it tried again: {why}", context)
        try:
            done = self.question(QuestionCall(stop=question.stop, answer=answer)).get("done")
        except TryLater as away:
            self.log.warning("what %s answered could not be done yet: %s", who, away)
            park(waiting, answer)
        self._go_on(f"{who} answered; {done}", context)

    def _look(self, waiting: Asked, context: Context) -> NoReturn:
        """Go on where the question is settled without an answer; else park the task again, while there is time."""
        try:
            settled = self.question(QuestionCall(stop=waiting.question.stop)).get("done")
        except TryLater as away:
            self.log.warning("whether it is settled could not be looked up: %s", away)
            settled = None
        if settled is not None:
            self._go_on(settled, context)
        if waiting.is_over:
            raise NeedsPerson(f"{waiting.question.subject} Nobody has answered within {self.answer_within}")
        park(waiting)

    def _go_on(self, because: str, context: Context) -> NoReturn:
        """End the try, so that the next one goes on; of the declared retries it is none."""
        self.log.info("%s; the run goes on", because)
        if isinstance(self.retry_policy, Retries):
            note_wait(context)
        raise Answered(because)


def put(question: Question, context: Context, deciders: Mapping[str, str]) -> None:
    """Put the question on the task's page in Airflow, without an answer."""
    from airflow.sdk import Param
    from airflow.sdk.execution_time.hitl import upsert_hitl_detail

    why = Param(
        "",
        type="string",
        title="Why",
        description="Kept with what is decided, under your name.",
        minLength=1,
        maxLength=LONGEST_WHY,
    )
    upsert_hitl_detail(
        ti_id=context["ti"].id,
        options=question.titles,
        subject=question.subject,
        body=question.body,
        params={"why": why.serialize()},
        assigned_users=[{"id": number, "name": name} for name, number in deciders.items()],
    )


def park(asked: Asked, given: Answer | None = None) -> NoReturn:
    """Park the task until its question is answered, or it is time to look. Raises TaskAwaitingInput.

    An answer that was `given` waits for a service: it is tried again after AWAY.
    """
    from airflow.sdk.exceptions import TaskAwaitingInput

    left = max(asked.until - dt.datetime.now(dt.UTC), dt.timedelta(seconds=1))
    raise TaskAwaitingInput(
        method_name="answered",
        kwargs={"asked": asked.json(), "given": dataclasses.asdict(given) if given else None},
        timeout=AWAY if given else min(left, LOOKS_EVERY),
    )


def answer_of(event: Mapping[str, Any], question: Question) -> Answer | None:
    """Read the answer that Airflow resumes the task with; None where it is none: nobody's, or without a reason."""
    chosen = [question.action_of(title) for title in event.get("chosen_options") or ()]
    who, why = event.get("responded_by_user"), str((event.get("params_input") or {}).get("why") or "").strip()
    if len(chosen) != 1 or chosen[0] is None or not who or not why:
        return None
    name = who["name"] if isinstance(who, Mapping) else who.name
    return Answer(action=chosen[0], who=name, why=why[:LONGEST_WHY])
