"""Consumers in the ledger: up to which commit each has read a pipeline, and what became of its table since.

Every function takes a cursor inside the caller's transaction, so that the caller decides what is atomic.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg2

from etl.common.database import Cursor, row_as, rows_as
from etl.common.errors import PlaceMoved, SetupError
from etl.common.statements import Statements
from etl.common.wording import visible

STATEMENTS = Statements(__name__)

DELETE = "delete"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a consumer is in the order of a pipeline's commits."""

    commit_seq: int  # the last one that it has read; 0: none
    delivery_id: int | None  # that commit's delivery, when it was read
    found: int | None  # that commit's delivery now: another one, or none, where PostgreSQL went back in time
    newest: int  # the pipeline's newest commit
    newest_delivery: int | None


@dataclass(frozen=True, kw_only=True)
class Change:
    """The rows of one delivery that came into a pipeline's table, or left it."""

    delivery_id: int  # what the rows carry as `_delivery_id`
    change: str  # insert, replace or release: they came; delete: they left
    changed_by: int  # the delivery that made the change: itself, or the one that took its place
    commit_seq: int  # the number of that one's commit
    rows: int


@dataclass(frozen=True, kw_only=True)
class ConsumerLag:
    """A consumer's place, and how far that is behind its pipeline's newest delivery."""

    consumer: str
    pipeline: str
    commit_seq: int  # its place; 0: it has read nothing
    delivery_id: int | None  # of that commit
    newest_seq: int | None  # None: nothing is delivered
    newest_delivery: int | None
    deliveries: int  # committed after its place
    rows: int  # that came or left with them
    behind_since: dt.datetime | None  # when the first of them was committed; None: it has read all
    seconds: float | None  # since then
    limit_seconds: float | None  # how far it may be behind; None: that is not said
    late: bool  # it is further
    moved_at: dt.datetime | None  # None: never
    created_at: dt.datetime

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class LateConsumer:
    """A consumer that is further behind than its pipeline says it may be."""

    pipeline: str
    consumer: str
    behind: dt.timedelta  # to the second
    limit: dt.timedelta

    def __str__(self) -> str:
        return f"consumer {visible(self.consumer)} is {self.behind} behind, more than {self.limit}"


def require_name(consumer: str) -> None:
    """Raise SetupError where a consumer can't be called so: names are printed, and asked for on command lines."""
    if not consumer.strip(" .") or not consumer.isprintable():
        raise SetupError(
            f"{consumer!r} is no name of a consumer", remedy="such as `delays`: printable, and not empty"
        )


def make(cursor: Cursor, pipeline: str, consumer: str) -> None:
    """Make the consumer where it is missing, before the first commit; nothing while nothing of the pipeline has run."""
    STATEMENTS.execute(cursor, "make", pipeline=pipeline, consumer=consumer)


def place(cursor: Cursor, pipeline: str, consumer: str) -> Place | None:
    """Return the consumer's place; None where there is no such consumer."""
    return row_as(STATEMENTS.execute(cursor, "place", pipeline=pipeline, consumer=consumer), Place)


def delivery_at(cursor: Cursor, pipeline: str, commit: int) -> int | None:
    """Return the delivery of one of the pipeline's commits; None where the ledger has no such commit."""
    found = STATEMENTS.execute(cursor, "delivery_at", pipeline=pipeline, commit=commit).fetchone()
    return None if found is None else int(found[0])


def changes_after(cursor: Cursor, pipeline: str, after: int) -> Sequence[Change]:
    """Return what became of the pipeline's table after the commit, in the order of commits."""
    return rows_as(STATEMENTS.execute(cursor, "changes", pipeline=pipeline, after=after), Change)


def lags(cursor: Cursor, pipeline: str | None) -> list[ConsumerLag]:
    """Return how far each consumer is behind, of one pipeline or of all."""
    return rows_as(STATEMENTS.execute(cursor, "lags", pipeline=pipeline), ConsumerLag)


def late(cursor: Cursor, pipelines: Sequence[str]) -> list[LateConsumer]:
    """Return the consumers of these pipelines that are further behind than they may be, the furthest first."""
    return rows_as(STATEMENTS.execute(cursor, "late", pipelines=list(pipelines)), LateConsumer)


def advance(cursor: Cursor, pipeline: str, consumer: str, *, place: int, to: int) -> None:
    """Move the consumer from `place` to commit `to`; raise PlaceMoved where another run has moved it, or it is forgotten."""
    try:
        STATEMENTS.execute(cursor, "advance", pipeline=pipeline, consumer=consumer, place=place, to=to)
    except (psycopg2.errors.SerializationFailure, psycopg2.errors.NoDataFound) as error:
        raise PlaceMoved(
            f"Consumer {consumer} of {pipeline} is no longer at commit {place}, where this run began: another run of it was"
            " there first, or somebody has put its place elsewhere or forgotten it. What this run made is not to be kept",
            remedy="start it again, which reads what is new then; let only one run of a consumer be under way",
        ) from error
