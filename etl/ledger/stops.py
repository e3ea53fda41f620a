"""Stopped batches, and what a person decided on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2.extras import Json

from etl.common.database import Cursor, execute, row


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a person decided on a stopped batch."""

    action: str  # accept or quarantine-all
    who: str
    why: str
    stops: tuple[str, ...]  # what was decided on
    seen: Seen | None  # likewise; None: the batch stopped before that was kept

    def json(self) -> dict[str, Any]:
        """Return what is kept of the decision with the batch."""
        return {"action": self.action, "who": self.who, "why": self.why, "stops": self.stops}


def forget_stops_from(cursor: Cursor, stream_id: str, batch_id: int) -> None:
    """Forget what stopped this batch of the stream and those after it, and what was decided on them."""
    execute(cursor, "ledger", "forget_stops_from", {"stream": stream_id, "batch": batch_id})


def record_stop(
    cursor: Cursor,
    pipeline: str,
    stream_id: str,
    batch_id: int,
    stops: Sequence[str],
    report: str,
    *,
    seen: Seen,
    lapsed: str,
) -> None:
    values = {
        "pipeline": pipeline,
        "stream": stream_id,
        "batch": batch_id,
        "stops": list(stops),
        "report": report,
        "suite_digest": seen.suite_digest,
        "lookups": Json(seen.lookups),
        "share": seen.share,
        "broken": Json(seen.broken),
        "lapsed": lapsed or None,
    }
    execute(cursor, "ledger", "record_stop", values)


def decision(cursor: Cursor, stream_id: str, batch_id: int) -> Decision | None:
    found = row(execute(cursor, "ledger", "decision", {"stream": stream_id, "batch": batch_id}))
    if found is None:
        return None
    kept = {name: found[name] for name in ("suite_digest", "lookups", "share", "broken")}
    return Decision(
        action=found["decision"],
        who=found["decided_by"],
        why=found["why"],
        stops=tuple(found["stops"]),
        seen=None if kept["suite_digest"] is None else Seen(**kept),
    )


SHARE_STOP = "more than max_quarantine_share allows"  # in the stop of a batch with too many rows held
UNREADABLE_STOP = " can't be read: "  # in the stop of a batch, between a file and the reason
STATE_STOP = (
    "its transform keeps state, which can't be made of a part of its files"  # and so nobody can decide on it
)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a batch was judged by and what came of it: all that a decision on its stop is about."""

    suite_digest: str
    lookups: Mapping[str, Any]  # name -> evidence of its files, or of its model
    share: float | None  # of the records that was to be held back; None: there was none
    broken: Mapping[str, int]  # reason of a rule that holds rows back -> rows that broke it
