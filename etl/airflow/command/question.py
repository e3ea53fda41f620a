"""Asks a person in Airflow about a run that only a person can help on, and does what was answered.

A question has the choices of what ended the run: those of `sluice decide` on a stopped batch, that of `sluice recover
--accept-gone` where Kafka has lost records, and for all else to try again once it is mended. What is answered is done by
the code of these commands, and only on what was asked about: where a stop was decided on meanwhile, delivered, or made
once more, nothing is recorded, and the next try goes by what is there.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from etl.airflow.command.request import selection_of
from etl.airflow.questions.markdown import escaped
from etl.airflow.questions.question import (
    ACCEPT,
    ACCEPT_GONE,
    HOLD,
    LEAVING,
    RETRY,
    SKIP_LOST,
    Answer,
    Choice,
    Question,
    QuestionCall,
    SeenStop,
    decisions_on,
)
from etl.common.database import row, transaction
from etl.common.errors import NeedsPerson
from etl.common.statements import Statements
from etl.common.wording import pluralize
from etl.ledger.decisions import become, decide_on_stop
from etl.ledger.stops import Stop, open_stops

if TYPE_CHECKING:
    from etl.airflow.task_try import TaskTry
    from etl.pipeline import Pipeline
    from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)

OF_A_BATCH = ("ContractBroken", "InputsUnreadable")  # outcomes of a run that leave a batch stopped
QUOTING = ("TransformFailed", "VerdictUnknown")  # outcomes whose message may quote a value of a record
LISTED = 20  # stops, rules or places of malformed records in a question's text
CUT = 600  # characters of each
_LINK = "\nEach expectation, with samples of values: [the page of the stopped batch]({}).\n"


def reply(workspace: Workspace, pipeline: Pipeline, call: QuestionCall) -> dict[str, Any]:
    """Do what the operator wants; return what there is to ask, or what became of the question, as JSON values."""
    if call.answer is not None:
        return {"done": act(workspace, pipeline, call.stop, call.answer)}
    if call.task_try is not None:
        question = question_of(workspace, pipeline, call.task_try, call.page)
        return {"question": question.json() if question else None}
    return {"done": settled(workspace.services.postgres, pipeline.name, call.stop)}


def question_of(workspace: Workspace, pipeline: Pipeline, task_try: TaskTry, page: str) -> Question | None:
    """Return what a person is to be asked about a try that ended; None about a replay or a release.

    What these need, they name in their message: another form. `page` is the address of the stopped batch's page.
    """
    if task_try.beside or task_try.release or selection_of(workspace, pipeline, task_try) is not None:
        return None
    with transaction(workspace.services.postgres) as cursor:
        STATEMENTS.execute(
            cursor,
            "ended_try",
            dag_id=task_try.dag_id,
            dag_run_id=task_try.dag_run_id,
            task_id=task_try.task_id,
            try_number=task_try.try_number,
        )
        ended = row(cursor) or {"outcome": None, "message": None, "remedy": None}
        stops = open_stops(cursor, pipeline.name)
    if ended["outcome"] in OF_A_BATCH and pipeline.replayable and stops and stops[-1].decision is None:
        return _of_stop(pipeline.name, stops[-1], page)
    return _of_ending(pipeline.name, ended)


def _of_stop(pipeline: str, stop: Stop, page: str) -> Question:
    """Make the question about a stopped batch."""
    assert stop.stream_id is not None
    assert stop.stopped_at is not None
    choices = (*decisions_on(stop), RETRY, LEAVING)
    return Question(
        subject=f"{pipeline}: batch {stop.batch_id} is stopped. What is to be done?",
        body="\n".join((*_evidence(pipeline, stop), _LINK.format(page), *_explained(choices))),
        choices=choices,
        stop=SeenStop(stream=stop.stream_id, batch=stop.batch_id, stopped_at=stop.stopped_at.isoformat()),
    )


def _evidence(pipeline: str, stop: Stop) -> Iterator[str]:
    """Yield what is known of a stop. Values of records are on the page alone, which asks who may see them."""
    yield f"**Nothing of batch {stop.batch_id} of {escaped(pipeline)}, and nothing after it, is delivered:**\n"
    yield from (f"- {escaped(one, CUT)}" for one in stop.stops[:LISTED])
    if stop.broken:
        yield "\n| rule | rows that break it |\n|---|---:|"
        ordered = sorted(stop.broken.items(), key=lambda one: -one[1])
        yield from (f"| {escaped(rule, CUT)} | {rows:,} |" for rule, rows in ordered[:LISTED])
        if len(ordered) > LISTED:
            yield f"\nand {pluralize(len(ordered) - LISTED, 'rule')} more"
    if stop.malformed:
        yield "\nRecords are malformed or late: the page says in which files, and what is wrong with them."
    if stop.behind is not None:
        yield f"\nEach batch from here on has this watermark. First {escaped(stop.behind.correction)}."
        if (back := stop.behind.way_back(pipeline)) is not None:
            yield f"Then `{back}` takes it back, and *{RETRY.title}* reads the batch again."
    if stop.unreadable:
        yield f"\nOr put whole files in their place, `sluice recover {pipeline}`, then *{RETRY.title}*."
    if stop.lapsed:
        yield f"\nIt has stopped once more: {escaped(stop.lapsed, CUT)}"


def _of_ending(pipeline: str, ended: Mapping[str, Any]) -> Question:
    """Make the question about a run that ended and left no batch to decide on."""
    choices = (*((SKIP_LOST,) if ended["outcome"] == "OffsetsGone" else ()), RETRY, LEAVING)
    said = None if ended["outcome"] in QUOTING else ended["message"]
    lines = [escaped(said or "The log of the task says what ended the run.", CUT)]
    if ended["remedy"]:
        lines.append(f"\nNext: {escaped(ended['remedy'], CUT)}. When that is done, *{RETRY.title}*.")
    return Question(
        subject=f"{pipeline}: a run needs a person. What is to be done?",
        body="\n".join((*lines, "", *_explained(choices))),
        choices=choices,
    )


def _explained(choices: tuple[Choice, ...]) -> Iterator[str]:
    yield "| choice | what it does |\n|---|---|"
    yield from (f"| **{choice.title}** | {choice.does} |" for choice in choices)


def settled(dsn: str, pipeline: str, seen: SeenStop | None) -> str | None:
    """Say what became of a stop since a person was asked about it; None while it still waits for the answer."""
    if seen is None:
        return None
    with transaction(dsn) as cursor:
        return become(cursor, pipeline, seen.stream, seen.batch, dt.datetime.fromisoformat(seen.stopped_at))


def act(workspace: Workspace, pipeline: Pipeline, seen: SeenStop | None, answer: Answer) -> str:
    """Do what a person answered, and say what was done; what was settled meanwhile is left as it is."""
    if answer.action == ACCEPT_GONE:
        return _accept_gone(workspace, pipeline, answer)
    if answer.action not in (HOLD, ACCEPT) or seen is None:
        return "nothing was decided"
    try:
        return decide_on_stop(
            workspace.services.postgres,
            pipeline.name,
            batch=seen.batch,
            stream=seen.stream,
            action=answer.action,
            who=answer.who,
            why=answer.why,
            seen=dt.datetime.fromisoformat(seen.stopped_at),
        )
    except NeedsPerson as too_late:
        return f"{too_late.seen}; the next try goes by what is there"


def _accept_gone(workspace: Workspace, pipeline: Pipeline, answer: Answer) -> str:
    from etl.runs.recovery.base import AcceptedGaps
    from etl.runs.recovery.recover import recover

    done = recover(workspace, pipeline, accepted=AcceptedGaps(who=answer.who, why=answer.why))
    return "; ".join(f"on record as gone: {line}" for line in done.gone) or "nothing was lost"
