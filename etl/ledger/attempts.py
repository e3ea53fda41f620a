"""Attempts: rows that are committed before the first object of a batch is written, so that a sweep knows whose it is."""

from __future__ import annotations

from collections.abc import Sequence

from etl.common.database import Cursor, execute, rows
from etl.common.errors import Busy
from etl.ledger.deliveries import KnownAttempt
from etl.ledger.leases import Lease, key_of


def open_attempt(cursor: Cursor, lease: Lease, stream_id: str, batch_id: int) -> int:
    """Reserve a delivery id. Commit this before the first object is written: the sweeper never touches what
    PostgreSQL does not know.
    """
    values = {**key_of(lease), "stream": stream_id, "batch": batch_id}
    number = execute(cursor, "ledger", "open_attempt", values).fetchone()
    assert number is not None
    return int(number[0])


def adopt_attempt(
    cursor: Cursor, lease: Lease, delivery_id: int, stream_id: str, batch_id: int, *, was: str
) -> None:
    """Make a lost attempt of run `was` known again, under the number that its rows carry.

    Raises Busy if the number was given out meanwhile.
    """
    values = {**key_of(lease), "delivery": delivery_id, "stream": stream_id, "batch": batch_id, "was": was}
    if execute(cursor, "ledger", "adopt_attempt", values).rowcount != 1:
        raise Busy(
            f"Delivery {delivery_id} of {lease.pipeline} was lost, and its number was given to another run just now",
            remedy=f"`sluice recover {lease.pipeline}` again",
        )


def known_attempts(cursor: Cursor, pipeline: str, deliveries: Sequence[int]) -> dict[int, KnownAttempt]:
    """Return the attempts, of any pipeline, that PostgreSQL knows under these delivery numbers.

    Leaves out those that an interrupted recover put back and did not deliver.
    """
    execute(cursor, "ledger", "known_attempts", {"pipeline": pipeline, "deliveries": list(deliveries)})
    return {one.pop("delivery_id"): KnownAttempt(**one) for one in rows(cursor)}


def skip_numbers(cursor: Cursor, number: int) -> None:
    """Never give out a delivery id up to `number` again: a restored sequence starts over."""
    execute(cursor, "ledger", "skip_numbers", {"number": number})


def close_attempt(cursor: Cursor, delivery_id: int, outcome: str) -> None:
    execute(cursor, "ledger", "close_attempt", {"delivery": delivery_id, "outcome": outcome})
