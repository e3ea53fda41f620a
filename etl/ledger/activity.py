"""Reads from the ledger what runs where, how a pipeline's last run ended, and the progress of its newest batches."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etl.common.database import Cursor, row_as, rows, rows_as
from etl.common.statements import Statements
from etl.ledger import leases

STATEMENTS = Statements(__name__)

NOBODY = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, kw_only=True)
class Running:
    """A run that has not ended."""

    run_id: str
    kind: str  # stream, replay, release or withdrawal
    host: str
    pid: str
    since: dt.datetime
    seen: dt.datetime  # its last heartbeat
    alive: bool  # False: killed or cut off, and not yet known to the ledger
    batch: int | None  # at work now; None: between two, or before the first
    batch_since: dt.datetime | None
    batches: int  # delivered so far
    records: int  # that these were made of
    now: dt.datetime  # of the database

    @property
    def where(self) -> str:
        return f"{self.host}, process {self.pid}"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The last run of the stream that has ended."""

    outcome: str  # done, or the name of the error
    message: str | None
    remedy: str | None
    ended_at: dt.datetime
    holder: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """One of a pipeline's runs, of whatever kind."""

    run_id: str
    kind: str  # stream, replay, release or withdrawal
    started_at: dt.datetime
    ended_at: dt.datetime | None
    outcome: str | None  # None: it has not ended
    deliveries: int
    first: int | None  # of its deliveries' numbers; None: it made none
    last: int | None


@dataclass(frozen=True, kw_only=True)
class Ran:
    """How one batch ran, as Spark reported it, and how much of it was late.

    See sluice.batch_progress and sluice.delivery.
    """

    batch_id: int
    triggered_at: dt.datetime
    input_rows: int
    input_rate: float | None
    processed_rate: float | None
    durations_ms: Mapping[str, int]
    phases_ms: Mapping[str, int]
    watermark: dt.datetime | None
    state_rows: int | None
    state_bytes: int | None
    dropped: int | None
    doubles: int | None
    behind: int | None
    late: int | None

    @property
    def seconds(self) -> float:
        """Return the seconds from the batch's look for new input to its last mark."""
        return self.durations_ms.get("triggerExecution", 0) / 1000

    def phase(self, name: str) -> float:
        """Return the seconds of a phase of the delivery; for `spark`, of all that is in no phase."""
        if name == "spark":
            return max(0.0, self.seconds - sum(self.phases_ms.values()) / 1000)
        return self.phases_ms.get(name, 0) / 1000


@dataclass(frozen=True, kw_only=True)
class BatchProgress(Ran):
    """All that Spark reported of a batch."""

    stream_id: str
    run_id: str
    delivery_id: int | None  # None: its batch is not delivered, or nothing was to be
    rows_out: int | None  # likewise
    latest: dt.datetime | None
    operators: Sequence[Mapping[str, Any]]
    ends: Sequence[str]


def running(cursor: Cursor, pipeline: str) -> list[Running]:
    """Return up to 20 of the pipeline's runs that have not ended, oldest first, of the stream or beside it."""
    found = rows(STATEMENTS.execute(cursor, "running", pipeline=pipeline, silence=leases.SILENCE))
    return [_running(one) for one in found]


def _running(found: Mapping[str, Any]) -> Running:
    host, _, pid = found["holder"].partition("/")
    return Running(
        run_id=found["run_id"],
        kind=found["kind"],
        host=host,
        pid=pid,
        since=found["started_at"],
        seen=found["seen_at"],
        alive=found["fresh"] and not leases.is_dead(found["holder"], found["process"]),
        batch=found["batch_id"],
        batch_since=found["opened_at"],
        batches=found["batches"],
        records=found["records"],
        now=found["now"],
    )


def last_ended(cursor: Cursor, pipeline: str) -> Ended | None:
    """Return how the pipeline's last ended run of the stream came out; None where none has ended yet."""
    return row_as(STATEMENTS.execute(cursor, "last_run", pipeline=pipeline, run=NOBODY), Ended)


def newest(cursor: Cursor, pipeline: str, *, most: int) -> list[BatchProgress]:
    """Return the current stream's last `most` batches that Spark reported, newest first."""
    STATEMENTS.execute(cursor, "newest", pipeline=pipeline, limit=most)
    return rows_as(cursor, BatchProgress)


def latest(cursor: Cursor, pipeline: str, *, most: int) -> list[Run]:
    """Return the pipeline's last `most` runs, newest first, those of earlier streams among them."""
    STATEMENTS.execute(cursor, "latest_runs", pipeline=pipeline, limit=most)
    return rows_as(cursor, Run)
