"""Attempts: ledger rows that are committed before a batch's first object is written, so that a sweep knows whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from etl.common.database import Cursor, rows
from etl.common.errors import Busy
from etl.common.statements import Statements
from etl.ledger.deliveries import KnownAttempt
from etl.ledger.leases import Lease

STATEMENTS = Statements(__name__)


class KilledAt(NamedTuple):
    """A batch at which runs were killed or cut off, without a word and without being asked to stop."""

    batch_id: int
    tries: int  # runs that this happened to
    holder: str  # the last of them: host and process
    seen_at: str  # its last heartbeat, in UTC


class Opened(NamedTuple):
    """An attempt that has just been opened."""

    delivery_id: int
    tried_before: bool  # it is not the first one at its batch


def open_attempt(cursor: Cursor, lease: Lease, stream_id: str, batch_id: int) -> Opened:
    """Reserve a delivery id. Commit this before the first object is written: the sweeper never touches what
    PostgreSQL does not know.
    """
    STATEMENTS.execute(
        cursor,
        "open_attempt",
        pipeline=lease.pipeline,
        run=lease.run_id,
        stream=stream_id,
        batch=batch_id,
    )
    [found] = cursor.fetchall()
    return Opened(*found)


def adopt_attempt(
    cursor: Cursor, lease: Lease, delivery_id: int, stream_id: str, batch_id: int, *, was: str
) -> None:
    """Make a lost attempt of run `was` known again, under the number that its rows carry.

    Raises Busy if the number was given out meanwhile.
    """
    STATEMENTS.execute(
        cursor,
        "adopt_attempt",
        pipeline=lease.pipeline,
        run=lease.run_id,
        delivery=delivery_id,
        stream=stream_id,
        batch=batch_id,
        was=was,
    )
    if cursor.rowcount != 1:
        raise Busy(
            f"Delivery {delivery_id} of {lease.pipeline} was lost, and its number has just been given to another run",
            remedy=f"`sluice recover {lease.pipeline}` again",
        )


def known_attempts(cursor: Cursor, pipeline: str, deliveries: Sequence[int]) -> dict[int, KnownAttempt]:
    """Return the attempts, of any pipeline, that PostgreSQL knows under these delivery numbers.

    Leaves out those that an interrupted recover put back and did not deliver.
    """
    STATEMENTS.execute(cursor, "known_attempts", pipeline=pipeline, deliveries=list(deliveries))
    return {one.pop("delivery_id"): KnownAttempt(**one) for one in rows(cursor)}


def skip_numbers(cursor: Cursor, number: int) -> None:
    """Never give out a delivery id up to `number` again, nor that of a row that was held: restored sequences start over."""
    STATEMENTS.execute(cursor, "skip_held_numbers", number=number)
    STATEMENTS.execute(cursor, "skip_numbers", number=number)


def ended_spark(cursor: Cursor, lease: Lease) -> tuple[int, int]:
    """Return the batch that this run attempted last, and at how many runs' attempts of it Spark has ended, this one's too.

    Where it has delivered that batch, or attempted none, it is at none of them.
    """
    STATEMENTS.execute(cursor, "ended_spark", run=lease.run_id)
    found = cursor.fetchone()
    return (int(found[0]), int(found[1])) if found else (0, 0)


def killed_at(cursor: Cursor, pipeline: str, stream_id: str) -> KilledAt | None:
    """Return the batch at which the stream's last try was killed or cut off; None where it ended otherwise.

    None as well where a run was refused for that since.
    """
    STATEMENTS.execute(cursor, "killed_at", pipeline=pipeline, stream=stream_id)
    found = cursor.fetchone()
    return KilledAt(*found) if found else None


def close_attempt(cursor: Cursor, lease: Lease, delivery_id: int, outcome: str) -> bool:
    """End an open attempt of this run; return False where it is none: it was fenced or lost, or is another's by now."""
    STATEMENTS.execute(cursor, "close_attempt", delivery=delivery_id, run=lease.run_id, outcome=outcome)
    return cursor.rowcount == 1
