"""Who may commit, what was committed, and from which inputs. All of it is in PostgreSQL.

Every function takes a cursor inside the caller's transaction, so that the caller decides what is atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etl.common.database import Cursor, execute, row, rows
from etl.ledger.inputs import Input


@dataclass(frozen=True, kw_only=True)
class Newest:
    """A pipeline's newest delivery."""

    delivery_id: int
    data: str  # where it left the metadata of the table
    quarantine: str  # and that of its quarantine


@dataclass(frozen=True, kw_only=True)
class KnownAttempt:
    """The attempt that a delivery's number was given to."""

    run_id: str
    delivered: bool
    adopted: bool  # of the pipeline that asks, and put back by that run


def batches_in_force(cursor: Cursor, pipeline: str) -> list[tuple[int, int | None, int]]:
    """Return the live deliveries of batches, releases left out, in the order of their commits.

    Each is its number, watermark (None: not known) and time; both times are in ms.
    """
    return execute(cursor, "ledger", "batches_in_force", {"pipeline": pipeline}).fetchall()


def live_deliveries(cursor: Cursor, pipeline: str) -> set[int]:
    """Return the ids of the pipeline's deliveries whose place no later one has taken."""
    return {number for (number,) in execute(cursor, "ledger", "live_deliveries", {"pipeline": pipeline})}


def holding(cursor: Cursor, pipeline: str) -> set[int]:
    """Return the ids of the pipeline's deliveries that still have rows held."""
    return {number for (number,) in execute(cursor, "ledger", "holding", {"pipeline": pipeline})}


def unknown_streams(cursor: Cursor, streams: Sequence[str]) -> list[str]:
    """Return those of `streams` that PostgreSQL does not know."""
    execute(cursor, "ledger", "known_streams", {"streams": list(streams)})
    known = {stream for (stream,) in cursor.fetchall()}
    return [one for one in streams if one not in known]


def know_stream(
    cursor: Cursor,
    pipeline: str,
    stream_id: str,
    *,
    checkpoint: str,
    first_batch: int = 0,
    state: Sequence[str] = (),
) -> None:
    """Record a stream that is not the pipeline's current one: no longer, or not yet.

    What is recorded stays as it is when the stream becomes the current one.
    """
    values = {
        "pipeline": pipeline,
        "stream": stream_id,
        "checkpoint": checkpoint,
        "first_batch": first_batch,
        "state": list(state),
    }
    execute(cursor, "ledger", "know_stream", values)


def delivery_of_batch(cursor: Cursor, stream_id: str, batch_id: int) -> int | None:
    """Return the id of the batch's delivery, or None where it is not delivered yet."""
    found = row(execute(cursor, "ledger", "delivery_of_batch", {"stream": stream_id, "batch": batch_id}))
    return None if found is None else int(found["delivery_id"])


def is_delivered(cursor: Cursor, delivery_id: int) -> bool:
    return execute(cursor, "ledger", "delivery_exists", {"delivery": delivery_id}).fetchone() is not None


def last_delivery(cursor: Cursor, pipeline: str) -> int | None:
    found = execute(cursor, "ledger", "last_delivery", {"pipeline": pipeline}).fetchone()
    return None if found is None else int(found[0])


def newest(cursor: Cursor, pipeline: str) -> Newest | None:
    """Return the pipeline's newest delivery; None before the first."""
    found = row(execute(cursor, "ledger", "newest", {"pipeline": pipeline}))
    return None if found is None else Newest(**found)


def inputs_of(cursor: Cursor, delivery_id: int) -> list[Input]:
    return [
        Input(**found)
        for found in rows(execute(cursor, "ledger", "inputs_of_delivery", {"delivery": delivery_id}))
    ]


def live_inputs(cursor: Cursor, pipeline: str) -> list[Input]:
    """Return every input that is in a live delivery: what a new checkpoint must not read again."""
    return [
        Input(**found) for found in rows(execute(cursor, "ledger", "live_inputs", {"pipeline": pipeline}))
    ]


def undecide(cursor: Cursor, stream_id: str, batch_id: int) -> None:
    """Forget the decision on a stopped batch, which stays stopped."""
    execute(cursor, "ledger", "undecide", {"stream": stream_id, "batch": batch_id})
