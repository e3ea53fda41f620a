"""Consumers in the ledger: up to which commit each has read a pipeline, and what became of its table since.

Every function takes a cursor inside the caller's transaction, so that the caller decides what is atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg2

from etl.common.database import Cursor, row_as, rows_as
from etl.common.errors import PlaceMoved, SetupError
from etl.common.statements import Statements

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
