"""A question to a person in Airflow, and the answer: what passes between the operator and its command. Light to import."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.airflow.task_try import TaskTry
from etl.common.errors import SetupError

if TYPE_CHECKING:
    from etl.ledger.stops import Stop

HOLD, ACCEPT = "quarantine-all", "accept"  # decisions on a stopped batch, as `sluice decide` takes them
ACCEPT_GONE = "accept-gone"  # as `sluice recover` takes it
AGAIN, LEAVE = "again", "leave"  # decide on nothing: another run, or none


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One answer that a person may give."""

    action: str
    title: str  # as its button says
    does: str


RETRY = Choice(
    action=AGAIN,
    title="Try again",
    does="Decides nothing: the batch is read and judged as files, declaration and suite then are.",
)
LEAVING = Choice(
    action=LEAVE, title="Leave it", does="The run fails. A later run stops here again, and asks again."
)
SKIP_LOST = Choice(
    action=ACCEPT_GONE,
    title="Go on without what is lost",
    does="The records that Kafka no longer has are on record as lost; the stream goes on behind them.",
)
TAKE_READABLE = Choice(
    action=HOLD,
    title="Deliver what can be read, hold the rest",
    does='What is missing of a file is in neither sink; one held row says so. With `unreadable="hold"` in the declaration'
    " that is so for every batch.",
)


@dataclass(frozen=True, kw_only=True)
class SeenStop:
    """The stop of a batch that a question is about, as it was when that was asked."""

    stream: str
    batch: int
    stopped_at: str  # ISO 8601


def decisions_on(stop: Stop) -> Iterator[Choice]:
    """Yield what may be decided on a stopped batch; nothing where its transform's state forbids it."""
    if not stop.decidable:
        return
    if stop.unreadable:
        yield TAKE_READABLE
        return
    late = stop.behind is not None and stop.of_share and not stop.broken
    hold = ["The watermark stays: what comes behind it in later batches is late, too."] if stop.behind else []
    if not stop.of_share:
        hold.append("Where a rule about the whole table failed, all rows of the batch are held.")
    yield Choice(
        action=HOLD,
        title=f"Hold the {'late records' if late else 'bad rows'}, deliver the rest",
        does=" ".join([*hold, "What is held can be released later."]),
    )
    if stop.acceptable:
        never = " Records that are malformed, late or of the future never became rows: they stay held."
        yield Choice(
            action=ACCEPT,
            title="Deliver the batch as it is",
            does="Rows that break a rule reach both sinks; the batch is shown as delivered with a broken rule."
            + (never if stop.malformed else ""),
        )


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a person is asked, with all that is needed to decide."""

    subject: str
    body: str  # Markdown
    choices: tuple[Choice, ...]
    stop: SeenStop | None = None  # None: what ended the run is no stop of a batch

    @property
    def titles(self) -> list[str]:
        return [choice.title for choice in self.choices]

    def action_of(self, title: str) -> str | None:
        return next((choice.action for choice in self.choices if choice.title == title), None)

    def json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Question:
        """Read what `json` returned."""
        stop = content["stop"]
        return cls(
            subject=content["subject"],
            body=content["body"],
            choices=tuple(Choice(**one) for one in content["choices"]),
            stop=SeenStop(**stop) if stop else None,
        )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a person chose, and why."""

    action: str
    who: str
    why: str


@dataclass(frozen=True, kw_only=True)
class QuestionCall:
    """What the operator wants of its command: a question, whether one is settled meanwhile, or to do as was answered."""

    task_try: TaskTry | None = None  # that ended: what is there to be asked of it?
    stop: SeenStop | None = None
    answer: Answer | None = None
    page: str = ""  # the address of the page of a stopped batch

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def parse(cls, text: str) -> QuestionCall:
        """Read the call from JSON, as the operator passes it. Raises SetupError."""
        kinds = {"task_try": TaskTry, "stop": SeenStop, "answer": Answer}
        try:
            given = json.loads(text)
            nouns = {name: kind(**given[name]) for name, kind in kinds.items() if given[name] is not None}
            return cls(**nouns, page=str(given["page"]))
        except (ValueError, TypeError, KeyError) as error:
            raise SetupError(
                f"standard input does not hold a question of an Airflow task: {error}",
                remedy="leave the command to Sluice's operator",
            ) from error
