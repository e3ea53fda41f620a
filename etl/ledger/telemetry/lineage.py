"""Keeps which deliveries an OpenLineage event is to be sent for, and reads what such an event says.

Every function takes a cursor inside the caller's transaction. What is noted is what no other row of the ledger has.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2.extras import Json

from etl.common.database import Cursor, row_as, rows_as
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class LineageNote:
    """What a run knows of its deliveries beside what their commits record."""

    sources: tuple[str | None, ...]  # the folder of each source; None: it reads no files
    parent: str | None  # the run that asked for it: namespace/job/run
    made_of: Mapping[str, Any] | None = None  # what its columns are made of, as `ToldDelivery` has it


@dataclass(frozen=True, kw_only=True)
class ToldDelivery:
    """A delivery as its event tells of it, with the run that made it and the try of Airflow that asked for that run."""

    delivery_id: int
    pipeline: str
    stream_id: str
    batch_id: int
    run_id: str
    kind: str  # stream, replay, release or withdrawal
    commit_seq: int
    committed_at: dt.datetime
    rows_in: int
    records: int | None
    delivered: int
    quarantined: int
    malformed: int
    late: int | None
    dropped: int | None
    suite_digest: str
    lookups: Mapping[str, Sequence[Mapping[str, Any]]]  # the files of each, or of a model, as Input has them
    snapshot_id: int | None
    released_from: int | None
    manifest: str
    table_schema: str
    table_name: str
    columns: Sequence[Mapping[str, str]] | None  # each with name and type; None: not noted
    sources: Sequence[str | None] | None  # likewise
    # Likewise, with the fields that make `columns` and decide on `rows`; and the stream of each source and topic, by which
    # a field of a stream is one of each of its inputs.
    made_of: Mapping[str, Any] | None
    parent: str | None
    dag_id: str | None
    dag_run_id: str | None
    task_id: str | None
    try_number: int | None
    report: str | None  # the suite's; None: it was not judged, or no report is kept any more
    replaces: Sequence[int]  # deliveries whose place it took


@dataclass(frozen=True, kw_only=True)
class ReadFiles:
    """The files of one source that a delivery read."""

    source: int
    files: int
    bytes: int
    uris: Sequence[str]  # the first of them


@dataclass(frozen=True, kw_only=True)
class ReadTopic:
    """The records of one topic that a delivery read."""

    topic: str
    records: int
    uris: Sequence[str]  # the ranges of offsets


@dataclass(frozen=True, kw_only=True)
class ToldRule:
    """How one rule came out for a delivery."""

    number: int
    reason: str
    expectation: str
    severity: str
    success: bool
    element_count: int | None
    unexpected_count: int | None


@dataclass(frozen=True, kw_only=True)
class WrittenFiles:
    """The objects that a delivery added to the lake's table."""

    files: int
    bytes: int


def note(cursor: Cursor, delivery_id: int, columns: Sequence[tuple[str, str]], noted: LineageNote) -> None:
    """Put a delivery on record as one to send an event for; `columns` are its rows', each name with its type."""
    STATEMENTS.execute(
        cursor,
        "note",
        delivery=delivery_id,
        columns=Json([{"name": name, "type": kind} for name, kind in columns]),
        sources=list(noted.sources),
        parent=noted.parent,
        made_of=None if noted.made_of is None else Json(noted.made_of),
    )


def unsent(cursor: Cursor, pipeline: str | None, *, limit: int) -> list[int]:
    """Return the oldest deliveries whose events are still to be sent, of one pipeline or of all."""
    STATEMENTS.execute(cursor, "unsent", pipeline=pipeline, limit=limit)
    return [number for (number,) in cursor.fetchall()]


def chosen(cursor: Cursor, pipeline: str, first: int, last: int) -> list[int]:
    """Return the pipeline's deliveries whose numbers are between these, noted or not, in force or not."""
    STATEMENTS.execute(cursor, "chosen", pipeline=pipeline, first=first, last=last)
    return [number for (number,) in cursor.fetchall()]


def sent(cursor: Cursor, delivery_id: int) -> None:
    """Note that the receiver has taken the delivery's event."""
    STATEMENTS.execute(cursor, "sent", delivery=delivery_id)


def told(cursor: Cursor, delivery_id: int) -> ToldDelivery | None:
    """Return what an event says of a delivery; None where the ledger has no such delivery."""
    return row_as(STATEMENTS.execute(cursor, "delivery", delivery=delivery_id), ToldDelivery)


def files(cursor: Cursor, delivery_id: int, *, most: int) -> list[ReadFiles]:
    """Return the files that the delivery read, the first `most` of each source by their URIs."""
    return rows_as(STATEMENTS.execute(cursor, "files", delivery=delivery_id, most=most), ReadFiles)


def topics(cursor: Cursor, delivery_id: int) -> list[ReadTopic]:
    """Return the topics that the delivery read."""
    return rows_as(STATEMENTS.execute(cursor, "topics", delivery=delivery_id), ReadTopic)


def rules(cursor: Cursor, delivery_id: int) -> list[ToldRule]:
    """Return how each rule came out for the delivery."""
    return rows_as(STATEMENTS.execute(cursor, "rules", delivery=delivery_id), ToldRule)


def written(cursor: Cursor, delivery_id: int) -> WrittenFiles:
    """Return what the delivery added to the lake's table."""
    found = row_as(STATEMENTS.execute(cursor, "written", delivery=delivery_id), WrittenFiles)
    assert found is not None  # it counts
    return found
