"""Reads a pipeline's state, what it waits for, and what a person decided."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from etl.common.database import Cursor, row, transaction
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.ledger import activity, consumers, streams
from etl.ledger.activity import BatchProgress, Ended, Run, Running
from etl.ledger.diagnosis import Diagnosis, diagnose
from etl.ledger.stops import open_stops
from etl.pipeline import Pipeline, load_pipeline, loadable
from etl.pipeline.replayability import promise, run_command
from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)

BATCHES = 10  # of a pipeline that is looked at by itself


@dataclass(frozen=True, kw_only=True)
class State:
    """One pipeline as the ledger has it."""

    pipeline: str
    table: str
    stream: str | None
    deliveries: int
    records: int | None  # that deliveries in force were made of, where the transform keeps state
    rows_in: int  # of these deliveries: rows out, plus
    malformed: int  # records that never became rows
    delivered: int
    quarantined: int  # by deliveries in force, whatever became of these rows since
    held: int  # rows in quarantine now
    dropped: int  # rows, or groups of them, left out behind the watermark, of all deliveries in force
    last: dt.datetime | None
    last_dropped: dt.datetime | None  # when the last of these deliveries was
    state: str  # new, idle, running, stopped, or the last run's error
    next: str  # the command that comes next
    standing: str  # as the pages have it: failing, interrupted, stopped, else the state of the last delivery; new: none
    failing_since: dt.datetime | None  # when the first run failed after which none did well
    running: Sequence[Running]  # runs that have not ended: where, since when, how far
    ended: Ended | None  # the last run that has
    unknown: Mapping[str, int] = field(
        default_factory=dict
    )  # records of the last delivery by field beyond the schema
    missing: Mapping[str, int] = field(default_factory=dict)  # the same by column that their files lack
    late_consumers: Sequence[str] = ()  # a phrase for each that is further behind than it may be
    promise: str | None = None  # of a pipeline whose source can't be read again: what a run of it keeps to
    batches: Sequence[BatchProgress] = ()  # newest first, of a pipeline that is looked at by itself
    runs: Sequence[Run] = ()  # likewise

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def cells(self) -> dict[str, str]:
        """Return what was delivered, and when last, by the headings of a table."""
        return {
            "pipeline": self.pipeline,
            "deliveries": f"{self.deliveries:,}",
            "delivered": f"{self.delivered:,}",
            "held now": f"{self.held:,}",
            "ever held": f"{self.quarantined:,}",
            "left out": f"{self.dropped:,}",
            "last delivery": self.last.astimezone().strftime("%Y-%m-%d %H:%M") if self.last else "-",
        }


def states(workspace: Workspace, name: str | None) -> list[State]:
    """Return the state of every pipeline whose declaration is right, or of the one named."""
    folders = workspace.settings.pipelines
    pipelines = {name: load_pipeline(name, folders)} if name else loadable(folders)
    dsn = workspace.services.postgres
    migrate(dsn)
    with transaction(dsn) as cursor:
        most = BATCHES if name else 0
        return [_state(cursor, pipeline, most) for pipeline in pipelines.values()]


def _state(cursor: Cursor, pipeline: Pipeline, most: int) -> State:
    name = pipeline.name
    totals = row(STATEMENTS.execute(cursor, "totals", pipeline=name)) or {}
    stands = row(STATEMENTS.execute(cursor, "standing", pipeline=name)) or {}
    known = streams.current_stream(cursor, name)
    now, ended = activity.running(cursor, name), activity.last_ended(cursor, name)
    diagnosis = _what(cursor, pipeline, now, ended)
    return State(
        pipeline=name,
        table=pipeline.table,
        stream=known.stream_id if known else None,
        deliveries=totals["deliveries"],
        records=totals["records"],
        rows_in=totals["rows_in"],
        malformed=totals["malformed"],
        delivered=totals["delivered"],
        quarantined=totals["quarantined"],
        held=totals["held"],
        dropped=totals["dropped"],
        last=totals["last"],
        last_dropped=totals["last_dropped"],
        unknown=totals["unknown"] or {},
        missing=totals["missing"] or {},
        state=diagnosis.state,
        next=diagnosis.next,
        standing=stands.get("standing", "new"),
        failing_since=stands.get("failing_since"),
        late_consumers=[str(one) for one in consumers.late(cursor, [name])],
        promise=None if pipeline.replayable else promise(pipeline),
        running=now,
        ended=ended,
        batches=activity.newest(cursor, name, most=most) if most else (),
        runs=activity.latest(cursor, name, most=most) if most else (),
    )


def _what(cursor: Cursor, pipeline: Pipeline, now: Sequence[Running], ended: Ended | None) -> Diagnosis:
    name = pipeline.name
    holders = {one.alive: f"{one.host}/{one.pid}" for one in now if one.kind == "stream"}
    stops = open_stops(cursor, name)
    return diagnose(
        name,
        holder=holders.get(True),
        silent=holders.get(False),
        stop=stops[-1] if stops else None,
        outcome=ended.outcome if ended else None,
        remedy=ended.remedy if ended else None,
        anew=None if pipeline.replayable else run_command(pipeline),
    )
