"""Where a pipeline stands, what it waits for, and what a person decided."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from etl import ledger, runs
from etl.database import Cursor, migrate, row, rows, run, session
from etl.errors import SetupError
from etl.live import promise, run_command
from etl.pipeline import Pipeline, load_pipeline, loadable
from etl.run import Place
from etl.runs import Ended, Progress, Run, Running
from etl.standing import Standing, Stop, standing
from etl.verdict import STATE_STOP

BATCHES = 10  # of a pipeline that is looked at by itself


@dataclass(frozen=True, kw_only=True)
class State:
    """One pipeline as the ledger has it."""

    pipeline: str
    table: str
    stream: str | None
    deliveries: int
    delivered: int
    quarantined: int
    dropped: int  # rows, or groups of them, left out behind the watermark, of all deliveries in force
    last: dt.datetime | None
    last_dropped: dt.datetime | None  # when the last of these deliveries was
    state: str  # new, idle, running, stopped, or the last run's error
    next: str  # the command that comes next
    running: Sequence[Running]  # runs that have not ended: where, since when, how far
    ended: Ended | None  # the last run that has
    promise: str | None = None  # of a pipeline whose source can't be read again: what a run of it keeps to
    batches: Sequence[Progress] = ()  # newest first, of a pipeline that is looked at by itself
    runs: Sequence[Run] = ()  # likewise

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def cells(self) -> list[str]:
        """What was delivered, and when last."""
        last = self.last.astimezone().strftime("%Y-%m-%d %H:%M") if self.last else "-"
        figures = [
            f"{self.deliveries:,}",
            f"{self.delivered:,}",
            f"{self.quarantined:,}",
            f"{self.dropped:,}",
        ]
        return [self.pipeline, *figures, last]


def states(place: Place, name: str | None) -> list[State]:
    """Every pipeline whose declaration is right, or the one named."""
    folders = place.settings.pipelines
    found = {name: load_pipeline(name, folders)} if name else loadable(folders)
    dsn = place.services.postgres
    migrate(dsn)
    with session(dsn) as cursor:
        most = BATCHES if name else 0
        return [_state(cursor, pipeline, most) for pipeline in found.values()]


def _state(cursor: Cursor, pipeline: Pipeline, most: int) -> State:
    name = pipeline.name
    totals = row(run(cursor, "ledger", "totals", {"pipeline": name})) or {}
    known = ledger.current_stream(cursor, name)
    now, ended = runs.running(cursor, name), runs.last_ended(cursor, name)
    found = _what(cursor, pipeline, now, ended)
    return State(
        pipeline=name,
        table=pipeline.table,
        stream=known.stream_id if known else None,
        deliveries=totals["deliveries"],
        delivered=totals["delivered"],
        quarantined=totals["quarantined"],
        dropped=totals["dropped"],
        last=totals["last"],
        last_dropped=totals["last_dropped"],
        state=found.state,
        next=found.next,
        promise=None if pipeline.replayable else promise(pipeline),
        running=now,
        ended=ended,
        batches=runs.newest(cursor, name, most=most) if most else (),
        runs=runs.latest(cursor, name, most=most) if most else (),
    )


def _what(cursor: Cursor, pipeline: Pipeline, now: Sequence[Running], ended: Ended | None) -> Standing:
    name = pipeline.name
    holders = {one.alive: f"{one.host}/{one.pid}" for one in now if one.kind == "stream"}
    stops = rows(run(cursor, "ledger", "open_stops", {"pipeline": name}))
    stop = stops[-1] if stops else None
    return standing(
        name,
        holder=holders.get(True),
        silent=holders.get(False),
        stop=Stop(batch_id=stop["batch_id"], stops=stop["stops"], decision=stop["decision"])
        if stop
        else None,
        outcome=ended.outcome if ended else None,
        anew=None if pipeline.replayable else run_command(pipeline),
    )


def record_decision(
    place: Place, pipeline: Pipeline, *, batch: int, stream: str | None, action: str, who: str, why: str
) -> str:
    """Record the decision on a stopped batch, for the next run to act on; returns what it will do."""
    if not why.strip():
        raise SetupError("A decision needs its reason", remedy='add --why "…"')
    if stream is not None and not is_uuid(stream):
        raise SetupError(
            f"--stream {stream} is no stream's id", remedy="`sluice status PIPELINE --json` shows them"
        )
    if not pipeline.replayable:
        raise SetupError(
            f"Pipeline {pipeline.name} reads {pipeline.live.named}: no run can have a stopped batch of it again",
            remedy=f"mend the suite, then `{run_command(pipeline)}`, which begins anew",
        )
    migrate(place.services.postgres)
    with session(place.services.postgres) as cursor:
        known = ledger.current_stream(cursor, pipeline.name)
        stream_id = stream or (known.stream_id if known else None)
        values = {"pipeline": pipeline.name, "stream": stream_id, "batch": batch}
        values |= {"decision": action, "who": who, "why": why}
        found = run(cursor, "ledger", "decide", values).fetchone()
        if found is None:
            open_stops = rows(run(cursor, "ledger", "open_stops", values))
            ids = ", ".join(str(stop["batch_id"]) for stop in open_stops) or "none"
            raise SetupError(
                f"Batch {batch} of stream {stream_id} of {pipeline.name} is not stopped; stopped are: {ids}",
                remedy=f"`sluice status {pipeline.name}` shows what it waits for",
            )
        if STATE_STOP in found[0]:
            raise SetupError(
                f"Batch {batch} of {pipeline.name} can't be delivered without what is missing of its files: {STATE_STOP}",
                remedy=f"put whole files in their place, then `sluice recover {pipeline.name}` and"
                f" `sluice run {pipeline.name}`",
            )
    will = "its failing rows are delivered" if action == "accept" else "its failing rows are held"
    if action == "quarantine-all":
        will += ", or all of its rows where a rule about the whole table failed"
    stop = Stop(batch_id=batch, stops=found[0], decision=action)
    if stop.unreadable:
        will += "; what can be read of its files is delivered, and the rest held, one row for each file"
    stops, before, by = "; ".join(found[0]), found[1], found[2]
    instead = f", which takes the place of {before} by {by}" if before else ""
    return f"batch {batch} ({stops}): {will}{instead}\nnext: `sluice run {pipeline.name}`"


def is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
