"""What the pages' statements return, one record a row, and the transaction in which a page reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from etl.airflow.pages.formatting import ratio
from etl.common.database import Cursor, connect, rows_as
from etl.common.statements import Statements
from etl.ledger.activity import Ran
from etl.ledger.diagnosis import Diagnosis, diagnose
from etl.ledger.leases import SILENCE
from etl.ledger.stops import LATE_TOLD, Behind, Stop

STATEMENTS = Statements(__name__)

MOST_COUNTED = 20_000  # held rows of a pipeline; more are "more than"
LONGEST_REPORT = 8_000_000  # bytes of a batch's report that a page reads
LAST = 2**63 - 1

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class PipelineRow:
    """Where one pipeline stands."""

    pipeline: str
    table: str
    anew: str | None  # the command of a run, where each begins anew
    retired_at: dt.datetime | None  # when somebody said that it will not run again
    retired_by: str | None
    retired_why: str | None
    now: dt.datetime  # of the database
    delivery_id: int | None  # its last live delivery; None before the first
    batch_id: int | None
    kind: str | None
    committed_at: dt.datetime | None
    state: str | None  # of that batch: good, noted, held, flawed, partial; None: nothing has judged it
    state_since: dt.datetime | None
    standing: (
        str  # of the pipeline: stopped, failing, interrupted, else that state; new: nothing is delivered
    )
    failing_since: dt.datetime | None  # when the first run failed after which none did well
    rows_in: int | None
    delivered: int | None
    quarantined: int | None
    malformed: int | None
    records: int | None  # that were read, where the transform keeps state
    dropped: int | None  # rows, or groups of them, left out behind the watermark
    unknown: Mapping[str, int] | None  # records by field that the schema does not name
    missing: Mapping[str, int] | None  # records by column of the schema that their file does not have
    held: int  # rows in quarantine now, counted up to MOST_COUNTED
    holder: str | None
    running: bool
    outcome: str | None  # of the last ended run
    message: str | None  # of the error that ended it
    remedy: str | None
    ended_at: dt.datetime | None
    stop_batch: int | None
    stop_stream: str | None
    stops: Sequence[str] | None
    stopped_at: dt.datetime | None
    decision: str | None
    stop_behind: Mapping[str, Any] | None  # of late records that stopped it, without the files
    stop_is_current: bool

    @property
    def stopped(self) -> bool:
        """Return True if a batch broke its contract, and nobody has decided on it."""
        return self.stop_batch is not None and self.decision is None

    @property
    def failing(self) -> bool:
        """Return True if runs have failed since the last one that did well, whatever its batch was like."""
        return self.standing in ("failing", "interrupted")

    @property
    def since(self) -> dt.datetime | None:
        """Return since when the pipeline stands as it does; None before its first batch."""
        if self.stopped:
            return self.stopped_at
        return self.failing_since if self.failing else self.state_since

    @property
    def stop(self) -> Stop | None:
        if self.stop_batch is None:
            return None
        stream = None if self.stop_is_current else self.stop_stream
        return Stop(
            batch_id=self.stop_batch,
            stops=self.stops or (),
            decision=self.decision,
            stream=stream,
            behind=Behind.of(self.stop_behind),
        )

    @property
    def diagnosis(self) -> Diagnosis:
        holder, silent = (self.holder, None) if self.running else (None, self.holder)
        return diagnose(
            self.pipeline,
            holder=holder,
            silent=silent,
            stop=self.stop,
            outcome=self.outcome,
            remedy=self.remedy,
            anew=self.anew,
        )


@dataclass(frozen=True, kw_only=True)
class LatestRow:
    """The state of one of a pipeline's last batches."""

    pipeline: str
    state: str


@dataclass(frozen=True, kw_only=True)
class CommittedRow:
    """Which delivery a row is about, and when it was committed."""

    delivery_id: int
    batch_id: int
    kind: str
    commit_seq: int
    committed_at: dt.datetime
    live: bool


@dataclass(frozen=True, kw_only=True)
class BatchRow(CommittedRow):
    """One delivered batch."""

    stream_id: str
    rows_in: int
    delivered: int
    quarantined: int
    malformed: int
    records: int | None  # that were read, where the transform keeps state
    dropped: int | None  # rows, or groups of them, left out behind the watermark
    suite_digest: str
    state: str | None

    @property
    def left_out(self) -> int:
        return self.dropped or 0

    @property
    def read(self) -> int:
        """Return how many records the batch read."""
        return self.rows_in if self.records is None else self.records

    @property
    def held_share(self) -> float | None:
        """Return the part that is held of the batch's rows, or of the records it read where these are more."""
        return ratio(self.quarantined, max(self.rows_in, self.records or 0))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a rule said of some rows."""

    success: bool
    element_count: int | None
    unexpected_count: int | None

    @property
    def share(self) -> float | None:
        return ratio(self.unexpected_count, self.element_count)

    @property
    def broken(self) -> bool:
        return not self.success or bool(self.unexpected_count)

    @property
    def tolerated(self) -> bool:
        """Return True if some rows break the rule, and the suite's `mostly` allows for so many."""
        return self.success and self.broken


@dataclass(frozen=True, kw_only=True)
class RuleRow(Judged):
    """One rule's verdict on one delivery."""

    delivery_id: int
    number: int
    reason: str
    known_by: str  # over its names
    dimension: str | None
    owner: str | None
    expectation: str
    severity: str


@dataclass(frozen=True, kw_only=True)
class VerdictRow(Judged, CommittedRow):
    """One of a rule's verdicts over time."""

    reason: str
    dimension: str | None
    owner: str | None
    expectation: str
    severity: str


@dataclass(frozen=True, kw_only=True)
class ColumnRow(CommittedRow):
    """What one column of a batch looked like; see sluice.column_history."""

    column_name: str
    rows_seen: int
    null_share: float | None
    minimum: float | None
    maximum: float | None
    mean: float | None
    p05: float | None
    p50: float | None
    p95: float | None
    distinct_estimate: float | None
    earliest: dt.datetime | None
    latest: dt.datetime | None
    age: float | None  # seconds from its latest moment to the delivery


@dataclass(frozen=True, kw_only=True)
class ProgressRow(Ran):
    """How one delivered batch ran."""

    delivery_id: int
    commit_seq: int
    committed_at: dt.datetime

    @property
    def lag(self) -> float | None:
        """Return by how many seconds the watermark was behind the clock when the batch began."""
        return None if self.watermark is None else (self.triggered_at - self.watermark).total_seconds()


@dataclass(frozen=True, kw_only=True)
class TryRow:
    """One try of an Airflow task."""

    task_id: str
    try_number: int
    run_type: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    outcome: str | None
    interval_start: dt.datetime | None
    interval_end: dt.datetime | None
    run_id: str | None
    message: str | None  # of the error that ended it
    remedy: str | None

    @property
    def failed(self) -> bool:
        """Return True if an error ended it; one that a signal ended after its batch was stopped."""
        return self.outcome not in (None, "done", "stopped")


@dataclass(frozen=True, kw_only=True)
class DeliveryRow(BatchRow):
    """One delivered batch, and all that is known of it."""

    released_from: int | None
    late: int | None  # of them, behind the watermark as they were read
    unknown: Mapping[str, int] | None  # records by field that the schema does not name
    missing: Mapping[str, int] | None  # records by column of the schema that their file does not have
    manifest: str
    snapshot_id: int | None
    report: str | None  # None: there is none, or it is longer than LONGEST_REPORT
    report_bytes: int | None
    superseded_by: int | None
    supersedes: Sequence[int]
    releases: Sequence[int]  # deliveries of rows that it had held
    previous: int | None
    previous_digest: str | None
    following: int | None
    replaces: bool  # each batch takes the place of all before it
    outcome: str | None
    started_at: dt.datetime | None
    who: str | None  # asked for the replay or the release
    run_why: str | None
    dag_id: str | None
    dag_run_id: str | None
    task_id: str | None
    try_number: int | None
    stops: Sequence[str] | None
    decision: str | None
    decided_by: str | None
    why: str | None
    decided_at: dt.datetime | None


@dataclass(frozen=True, kw_only=True)
class StopRow:
    """A batch that broke its contract, and was not delivered since."""

    stream_id: str
    batch_id: int
    stops: Sequence[str]
    stopped_at: dt.datetime
    decision: str | None
    decided_by: str | None
    why: str | None
    decided_at: dt.datetime | None
    lapsed: str | None  # which decision on an earlier stop of it no longer held, and why
    malformed: Sequence[str] | None  # where most of its malformed records are, and what is wrong with them
    broken: Mapping[str, int] | None  # rule that holds rows -> how many rows broke it
    behind: Mapping[str, Any] | None  # see Behind
    report: str | None

    @property
    def late(self) -> Behind | None:
        """Return the watermark that too many of its records came behind; None where something else stopped it."""
        return Behind.of(self.behind)

    @property
    def misread(self) -> bool:
        """Return True if records could not be read as declared, and these or a rule stopped it."""
        return self.late is None and any(not one.startswith(LATE_TOLD) for one in self.malformed or ())

    @property
    def acceptable(self) -> bool:
        """Return True if an accepted batch brings rows that are held else: records that never were rows stay held."""
        return self.as_stop.acceptable

    @property
    def as_stop(self) -> Stop:
        return Stop(
            batch_id=self.batch_id,
            stops=self.stops,
            decision=self.decision,
            behind=self.late,
            malformed=self.malformed or (),
            broken=self.broken,
        )


@dataclass(frozen=True, kw_only=True)
class InputRow:
    uri: str
    size: int
    mtime_ms: int
    all: int  # inputs of the delivery, this one among them

    @property
    def changed(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.mtime_ms / 1000, dt.UTC)


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    model: str
    version: int
    threshold: float
    made_at: dt.datetime


@dataclass(frozen=True, kw_only=True)
class RangeRow:
    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    all: int  # ranges of the delivery, this one among them


@dataclass(frozen=True, kw_only=True)
class FileRow:
    kind: str
    path: str
    rows: int
    bytes: int
    all: int


@dataclass(frozen=True, kw_only=True)
class StatusRow:
    status: str
    rows: int
    uncorrected: int  # of them, can't be released as they are


@dataclass(frozen=True, kw_only=True)
class DecidedRow:
    """One decision on rows of a delivery."""

    status: str
    decided_by: str
    why: str | None
    decided_at: dt.datetime
    rows: int


@dataclass(frozen=True, kw_only=True)
class ReasonRow:
    reason: str
    rows: int


def new_streams(old_first: Sequence[BatchRow]) -> frozenset[int]:
    """Return the deliveries with which another stream begins than that of the batch before; the first is none.

    Replays and releases are beside the stream.
    """
    batches = [one for one in old_first if one.kind == "stream"]
    return frozenset(
        later.delivery_id for earlier, later in pairwise(batches) if earlier.stream_id != later.stream_id
    )


@contextmanager
def reading(dsn: str) -> Iterator[Cursor]:
    """Open one snapshot of the ledger for a whole page, which can write nothing and waits for nobody."""
    connection = connect(dsn)
    try:
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        with connection.cursor() as cursor:
            STATEMENTS.execute(cursor, "begin")
            yield cursor
    finally:
        connection.close()


def fetch_rows(cursor: Cursor, name: str, kind: type[Record], /, **values: Any) -> list[Record]:
    """Return the rows of statement `name` as records."""
    return rows_as(STATEMENTS.execute(cursor, name, **values), kind)


def older_than(cursor: Cursor, pipeline: str, *, before: int, limit: int, releases: bool) -> int | None:
    """Return `before` of the page after one of `limit` live batches; None where that page had them all."""
    STATEMENTS.execute(cursor, "older", pipeline=pipeline, before=before, limit=limit, releases=releases)
    [(bound,)] = cursor.fetchall()
    return None if bound is None else int(bound)


def newer_than(cursor: Cursor, pipeline: str, *, newest: int, limit: int) -> int | None:
    """Return `before` of the page of up to `limit` live batches that follow `newest`; None where none does."""
    STATEMENTS.execute(cursor, "newer", pipeline=pipeline, newest=newest, limit=limit)
    [(bound,)] = cursor.fetchall()
    return None if bound is None else int(bound)


def reasons_of_last(cursor: Cursor, pipeline: str) -> list[str]:
    """Return the rules of the pipeline's last batch, to choose from."""
    return [reason for (reason,) in STATEMENTS.execute(cursor, "reasons_of_last", pipeline=pipeline)]


def pipeline_names(cursor: Cursor) -> dict[str, bool]:
    """Return all pipelines that ever ran, each with whether it is retired."""
    return dict(STATEMENTS.execute(cursor, "pipelines").fetchall())


def pipeline_rows(cursor: Cursor, pipelines: Sequence[str]) -> list[PipelineRow]:
    return fetch_rows(
        cursor,
        "pipeline_rows",
        PipelineRow,
        pipelines=list(pipelines),
        most=MOST_COUNTED,
        silence=SILENCE,
    )
