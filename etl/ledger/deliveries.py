"""Deliveries in the ledger: which batches were committed, by which number, from which inputs.

Every function takes a cursor inside the caller's transaction, so that the caller decides what is atomic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from etl.common.database import Cursor, row, row_as, rows_as
from etl.common.statements import Statements
from etl.ledger.inputs import Input

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class Newest:
    """A pipeline's newest delivery."""

    delivery_id: int
    data: str  # where it left the metadata of the table
    quarantine: str  # and that of its quarantine


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit of a pipeline, which no other is, whatever PostgreSQL was restored to meanwhile."""

    commit_seq: int  # its number among the pipeline's
    delivery_id: int
    run_id: str


@dataclass(frozen=True, kw_only=True)
class LiveDelivery:
    """A delivery whose place no later one has taken."""

    delivery_id: int
    stream_id: str
    batch_id: int
    kind: str  # stream, replay, release or withdrawal
    commit_seq: int  # the number of its commit among the pipeline's
    released_from: int | None  # of a release the delivery that had held its rows
    delivered: int
    quarantined: int
    checksum: Decimal  # of the delivered rows
    quarantine_checksum: Decimal


@dataclass(frozen=True, kw_only=True)
class DeliveredFile:
    """An object of a live delivery."""

    delivery_id: int
    stream_id: str
    batch_id: int
    kind: str  # data or quarantine
    path: str  # its URI
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class DeliveredInput(Input):
    """An input of a live delivery, as it was seen then."""

    delivery_id: int


@dataclass(frozen=True, kw_only=True)
class KnownAttempt:
    """The attempt that a delivery's number was given to."""

    run_id: str
    delivered: bool
    adopted: bool  # of the pipeline that asks, and put back by that run


def batches_in_force(cursor: Cursor, pipeline: str) -> list[tuple[int, int | None, int]]:
    """Return the live deliveries of batches, without releases and withdrawals, in the order of their commits.

    Each is its number, watermark (None: not known) and time; both times are in ms.
    """
    return STATEMENTS.execute(cursor, "batches_in_force", pipeline=pipeline).fetchall()


def deliveries_in_force(cursor: Cursor, pipeline: str) -> list[LiveDelivery]:
    """Return the live deliveries in the order of their commits, each with its counts and its sinks' checksums."""
    STATEMENTS.execute(cursor, "deliveries_in_force", pipeline=pipeline)
    return rows_as(cursor, LiveDelivery)


def delivered_files(cursor: Cursor, pipeline: str) -> list[DeliveredFile]:
    """Return the committed files of the pipeline's live deliveries."""
    STATEMENTS.execute(cursor, "delivered_files", pipeline=pipeline)
    return rows_as(cursor, DeliveredFile)


def last_before_watermark(cursor: Cursor, pipeline: str, watermark_ms: int) -> int | None:
    """Return the pipeline's last batch in force that began with an earlier watermark: its records set this one."""
    STATEMENTS.execute(cursor, "last_before_watermark", pipeline=pipeline, watermark=watermark_ms)
    found = cursor.fetchone()
    return None if found is None else int(found[0])


def origins(cursor: Cursor, deliveries: Sequence[int]) -> list[int]:
    """Return these deliveries, and in the place of each release the delivery that had held its rows first."""
    STATEMENTS.execute(cursor, "origins", deliveries=list(deliveries))
    return [number for (number,) in cursor.fetchall()]


def live_deliveries(cursor: Cursor, pipeline: str) -> set[int]:
    """Return the ids of the pipeline's deliveries whose place no later one has taken."""
    return {number for (number,) in STATEMENTS.execute(cursor, "live_deliveries", pipeline=pipeline)}


def holding(cursor: Cursor, pipeline: str) -> set[int]:
    """Return the ids of the pipeline's deliveries that still have rows held."""
    return {number for (number,) in STATEMENTS.execute(cursor, "holding", pipeline=pipeline)}


def delivery_of_batch(cursor: Cursor, stream_id: str, batch_id: int) -> int | None:
    """Return the id of the batch's delivery, or None where it is not delivered yet."""
    found = row(STATEMENTS.execute(cursor, "delivery_of_batch", stream=stream_id, batch=batch_id))
    return None if found is None else int(found["delivery_id"])


def is_delivered(cursor: Cursor, delivery_id: int, run_id: str) -> bool:
    """Tell whether this run has delivered under this number: after a restore the number may be another's."""
    STATEMENTS.execute(cursor, "delivery_exists", delivery=delivery_id, run=run_id)
    return cursor.fetchone() is not None


def last_delivery(cursor: Cursor, pipeline: str) -> int | None:
    """Return the id of the pipeline's newest delivery; None before the first."""
    commit = last_commit(cursor, pipeline)
    return None if commit is None else commit.delivery_id


def last_commit(cursor: Cursor, pipeline: str) -> Commit | None:
    """Return the commit of the pipeline's newest delivery; None before the first."""
    return row_as(STATEMENTS.execute(cursor, "last_commit", pipeline=pipeline), Commit)


def newest(cursor: Cursor, pipeline: str) -> Newest | None:
    """Return the pipeline's newest delivery; None before the first."""
    return row_as(STATEMENTS.execute(cursor, "newest", pipeline=pipeline), Newest)


def inputs_of(cursor: Cursor, delivery_id: int) -> list[Input]:
    return rows_as(STATEMENTS.execute(cursor, "inputs_of_delivery", delivery=delivery_id), Input)


def live_inputs(cursor: Cursor, pipeline: str) -> list[Input]:
    """Return every input that is in a live delivery: what a new checkpoint must not read again."""
    return rows_as(STATEMENTS.execute(cursor, "live_inputs", pipeline=pipeline), Input)


def live_paths(cursor: Cursor, pipeline: str) -> list[str]:
    """Return the path of every input that is in a live delivery, in no order."""
    return [path for (path,) in STATEMENTS.execute(cursor, "live_paths", pipeline=pipeline)]


def live_among(cursor: Cursor, pipeline: str, paths: Sequence[str]) -> set[str]:
    """Return which of these paths are inputs of live deliveries."""
    return {
        path for (path,) in STATEMENTS.execute(cursor, "live_among", pipeline=pipeline, paths=list(paths))
    }


def inputs_by_delivery(cursor: Cursor, pipeline: str) -> list[DeliveredInput]:
    """Return every input that is in a live delivery with that delivery's number, by source and path."""
    return rows_as(STATEMENTS.execute(cursor, "inputs_by_delivery", pipeline=pipeline), DeliveredInput)


def new_drift(cursor: Cursor, pipeline: str, deliveries: Sequence[int]) -> list[str]:
    """Return the fields that these deliveries counted beyond the schema, or as missing, and the one before them did not."""
    STATEMENTS.execute(cursor, "new_drift", pipeline=pipeline, deliveries=list(deliveries))
    return [name for (name,) in cursor.fetchall()]
