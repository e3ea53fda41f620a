"""Records what a person decided on a stopped batch."""

from __future__ import annotations

import uuid

from etl.common.database import migrate, transaction
from etl.common.errors import SetupError
from etl.common.wording import WHY
from etl.ledger import stops, streams
from etl.ledger.stops import STATE_STOP, Stop
from etl.pipeline import Pipeline
from etl.pipeline.replayability import run_command
from etl.runs.workspace import Workspace


def record_decision(
    workspace: Workspace,
    pipeline: Pipeline,
    *,
    batch: int,
    stream: str | None,
    action: str,
    who: str,
    why: str,
) -> str:
    """Record the decision on a stopped batch, for the next run to act on; returns what it will do."""
    if not why.strip():
        raise SetupError("A decision needs its reason", remedy=f"add {WHY}")
    if stream is not None and not is_uuid(stream):
        raise SetupError(
            f"--stream {stream} is no stream's id", remedy="`sluice status PIPELINE --json` shows them"
        )
    if not pipeline.replayable:
        raise SetupError(
            f"Pipeline {pipeline.name} reads {pipeline.reads}: no run can have a stopped batch of it again",
            remedy=f"fix the suite, then `{run_command(pipeline)}`, which begins a new stream",
        )
    migrate(workspace.services.postgres)
    with transaction(workspace.services.postgres) as cursor:
        known = streams.current_stream(cursor, pipeline.name)
        stream_id = stream or (known.stream_id if known else None)
        decided = stops.decide(cursor, pipeline.name, stream_id, batch, action, who=who, why=why)
        if decided is None:
            ids = ", ".join(str(stop.batch_id) for stop in stops.open_stops(cursor, pipeline.name)) or "none"
            raise SetupError(
                f"Batch {batch} of stream {stream_id} of {pipeline.name} is not stopped; stopped are: {ids}",
                remedy=f"`sluice status {pipeline.name}` shows what it waits for",
            )
        if STATE_STOP in decided.stops:
            raise SetupError(
                f"Batch {batch} of {pipeline.name} can't be delivered without the missing part of its files: {STATE_STOP}",
                remedy=f"put whole files in their place, then `sluice recover {pipeline.name}` and"
                f" `sluice run {pipeline.name}`",
            )
    will = "its failing rows are delivered" if action == "accept" else "its failing rows are held"
    if action == "quarantine-all":
        will += ", or all of its rows where a rule about the whole table failed"
    stop = Stop(batch_id=batch, stops=decided.stops, decision=action)
    if stop.unreadable:
        will += "; what can be read of its files is delivered, and the rest held, one row for each file"
    instead = f", which replaces {decided.before} by {decided.by}" if decided.before else ""
    return f"batch {batch} ({'; '.join(decided.stops)}): {will}{instead}\nnext: `sluice run {pipeline.name}`"


def is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
