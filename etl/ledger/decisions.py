"""Records what a person decided on a stopped batch: for the command, for the pages and for a question in Airflow alike."""

from __future__ import annotations

import datetime as dt
from typing import Literal

from etl.common.database import Cursor, transaction
from etl.common.errors import NeedsPerson, SetupError
from etl.common.wording import WHY
from etl.ledger import stops, streams
from etl.ledger.stops import STATE_STOP, Stop

Action = Literal["quarantine-all", "accept"]


def decide_on_stop(
    dsn: str,
    pipeline: str,
    *,
    batch: int,
    stream: str | None,
    action: str,
    who: str,
    why: str,
    seen: dt.datetime | None = None,
) -> str:
    """Record the decision on a stopped batch, for the next run to act on; return what it will do.

    The batch is of the current stream, if no other is named. `seen` is when the stop was made on which the person
    decides: NeedsPerson is raised where somebody has decided since, or the batch has stopped again or is stopped no more.
    Raises SetupError where there is no reason, no such stop, or nothing that could be decided.
    """
    if not why.strip():
        raise SetupError("A decision needs its reason", remedy=f"add {WHY}")
    with transaction(dsn) as cursor:
        known = streams.current_stream(cursor, pipeline)
        stream_id = stream or (known.stream_id if known else None)
        decided = stops.decide(cursor, pipeline, stream_id, batch, action, who=who, why=why, seen=seen)
        if decided is None:
            if seen is not None and (became := become(cursor, pipeline, stream_id, batch, seen)) is not None:
                raise NeedsPerson(f"{became}. Nothing was changed", remedy=f"`sluice status {pipeline}`")
            ids = ", ".join(str(stop.batch_id) for stop in stops.open_stops(cursor, pipeline)) or "none"
            raise SetupError(
                f"Batch {batch} of stream {stream_id} of {pipeline} is not stopped; stopped are: {ids}",
                remedy=f"`sluice status {pipeline}` shows what it waits for",
            )
        if STATE_STOP in decided.stops:
            raise SetupError(
                f"Batch {batch} of {pipeline} can't be delivered without the missing part of its files: {STATE_STOP}",
                remedy=f"put whole files in their place, then `sluice recover {pipeline}` and"
                f" `sluice run {pipeline}`",
            )
    will = "its failing rows are delivered" if action == "accept" else "its failing rows are held"
    if action == "quarantine-all":
        will += ", or all of its rows where a rule about the whole table failed"
    if Stop(batch_id=batch, stops=decided.stops, decision=action).unreadable:
        will += "; what can be read of its files is delivered, and the rest held, one row for each file"
    instead = f", which replaces {decided.before} by {decided.by}" if decided.before else ""
    return f"batch {batch} ({'; '.join(decided.stops)}): {will}{instead}"


def become(cursor: Cursor, pipeline: str, stream_id: str | None, batch: int, seen: dt.datetime) -> str | None:
    """Say what has become of a stop since a person saw it as of `seen`; None where it waits as it did."""
    stopped = stops.open_stops(cursor, pipeline)
    now = next((one for one in stopped if (one.stream_id, one.batch_id) == (stream_id, batch)), None)
    if now is None:
        became = "is stopped no more: it was delivered meanwhile, or another stream has taken its place"
    elif now.decision is not None:
        became = f"was decided on meanwhile: {now.decision}, by {now.decided_by}"
    elif now.stopped_at != seen:
        became = "has stopped once more since this was asked, and may break other rules now"
    else:
        return None
    return f"Batch {batch} of {pipeline} {became}"
