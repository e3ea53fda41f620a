"""Stopped batches, and the decisions of people on them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from psycopg2.extras import Json

from etl.common.database import Cursor, row, rows
from etl.common.statements import Statements
from etl.common.wording import WHY, visible

STATEMENTS = Statements(__name__)

FILES_KEPT = 5  # of the delivery that set a watermark


@dataclass(frozen=True, kw_only=True)
class Behind:
    """The watermark that made too many records of a stopped batch late: each later batch is planned with it, too."""

    watermark_ms: int  # since 1970
    ahead: bool  # of the clock, when the batch stopped
    set_by: int | None  # the delivery whose records set it; None: none that can be gone back before
    # Paths of that delivery's files, FILES_KEPT at most, and how many more there are: a record of one of them set it.
    files: Sequence[str] = ()
    more_files: int = 0

    @classmethod
    def of(cls, kept: Mapping[str, Any] | None) -> Behind | None:
        """Read the watermark from the JSON that was kept with a stop; return None where none was."""
        return None if kept is None else cls(**kept)

    @property
    def correction(self) -> str:
        """Say what is wrong, and what to declare."""
        if self.ahead:
            return "a record's time is ahead of the clock: bound it by `not_after=` in the declaration"
        return "wait longer for what comes late (`withWatermark` in the transform)"

    @property
    def read(self) -> str:
        """Say which files the delivery read that set it; empty where that is not known."""
        more = f"; and {self.more_files:,} more" if self.more_files else ""
        return f"it read {'; '.join(map(visible, self.files))}{more}" if self.files else ""

    def way_back(self, pipeline: str) -> str | None:
        """Return the command that takes the watermark back; None where the rows so far have to be built anew."""
        return None if self.set_by is None else f"sluice recover {pipeline} --before {self.set_by} {WHY}"


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A batch that broke its contract and has not been delivered since."""

    batch_id: int
    stops: Sequence[str]  # why, one sentence each
    decision: str | None  # quarantine-all or accept; None: nobody has decided yet
    stream: str | None = None  # named in the command where it is not the current one
    behind: Behind | None = None  # where late records stopped it
    stream_id: str | None = None
    stopped_at: dt.datetime | None = None
    decided_by: str | None = None
    lapsed: str | None = None  # which decision on an earlier stop of it no longer held, and why
    malformed: Sequence[str] = ()  # where most of its malformed records are, and what is wrong with them
    broken: Mapping[str, int] | None = None  # rule that holds rows -> how many rows broke it

    def json(self) -> dict[str, Any]:
        """Return the stop as JSON values."""
        at = self.stopped_at and self.stopped_at.isoformat()
        return {**asdict(self), "stopped_at": at}

    @property
    def of_share(self) -> bool:
        """Tell whether nothing stopped the batch but that too much of it would be held."""
        return all(SHARE_STOP in one for one in self.stops)

    @property
    def acceptable(self) -> bool:
        """Tell whether an accepted batch brings rows that are held else: records that never were rows stay held."""
        return not self.unreadable and (not self.of_share or self.broken is None or bool(self.broken))

    @property
    def unreadable(self) -> bool:
        """Tell whether files of the batch can't be read; `sluice recover` takes them up once mended."""
        return any(UNREADABLE_STOP in one for one in self.stops)

    @property
    def decidable(self) -> bool:
        """Tell whether a person may decide to deliver the batch in spite of its stop."""
        return STATE_STOP not in self.stops

    def next(self, pipeline: str) -> str:
        """Return the command that leads on from the stop."""
        if self.unreadable:
            return f"sluice recover {pipeline}"
        if self.behind is not None and (back := self.behind.way_back(pipeline)) is not None:
            return back
        stream = f" --stream {self.stream}" if self.stream else ""
        return f"sluice decide {pipeline} --batch {self.batch_id}{stream} --quarantine-all {WHY}"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a person decided on a stopped batch."""

    action: str  # accept or quarantine-all
    who: str
    why: str
    at: dt.datetime
    stops: tuple[str, ...]  # what was decided on
    seen: Seen | None  # likewise; None: the batch stopped before that was kept

    def json(self) -> dict[str, Any]:
        """Return what is kept of the decision with the batch."""
        return {"action": self.action, "who": self.who, "why": self.why, "stops": self.stops}

    def describe(self) -> str:
        """Say who decided what, when, and at which share of held records."""
        share = self.seen.share if self.seen else None
        held = "" if share is None else f", on {share:.2%} of the records held"
        return f"{self.who}'s decision {self.action} (of {self.at:%Y-%m-%d %H:%M} UTC{held})"


def open_stops(cursor: Cursor, pipeline: str) -> list[Stop]:
    """Return the pipeline's stopped batches that were not delivered since, the first that stopped first."""
    found = rows(STATEMENTS.execute(cursor, "open_stops", pipeline=pipeline))
    return [
        Stop(
            batch_id=one["batch_id"],
            stops=one["stops"],
            decision=one["decision"],
            behind=Behind.of(one["behind"]),
            stream_id=one["stream_id"],
            stopped_at=one["stopped_at"],
            decided_by=one["decided_by"],
            lapsed=one["lapsed"],
            malformed=one["malformed"] or (),
            broken=one["broken"],
        )
        for one in found
    ]


def forget_stops(cursor: Cursor, pipeline: str) -> None:
    """Forget the stopped batches of streams that are no longer the pipeline's current one."""
    STATEMENTS.execute(cursor, "forget_stops", pipeline=pipeline)


def forget_stops_from(cursor: Cursor, stream_id: str, batch_id: int) -> None:
    """Forget what stopped this batch of the stream and those after it, and what was decided on them."""
    STATEMENTS.execute(cursor, "forget_stops_from", stream=stream_id, batch=batch_id)


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
    malformed: Sequence[str],
    behind: Behind | None,
) -> None:
    """Put a stopped batch on record; `malformed` says where most of its malformed records are, as evidence alone."""
    STATEMENTS.execute(
        cursor,
        "record_stop",
        pipeline=pipeline,
        stream=stream_id,
        batch=batch_id,
        stops=list(stops),
        report=report,
        suite_digest=seen.suite_digest,
        lookups=Json(seen.lookups),
        share=seen.share,
        broken=Json(seen.broken),
        lapsed=lapsed or None,
        malformed=list(malformed),
        behind=Json(asdict(behind)) if behind else None,
    )


def decision(cursor: Cursor, stream_id: str, batch_id: int) -> Decision | None:
    found = row(STATEMENTS.execute(cursor, "decision", stream=stream_id, batch=batch_id))
    if found is None:
        return None
    kept = {name: found[name] for name in ("suite_digest", "lookups", "share", "broken")}
    return Decision(
        action=found["decision"],
        who=found["decided_by"],
        why=found["why"],
        at=found["decided_at"],
        stops=tuple(found["stops"]),
        seen=None if kept["suite_digest"] is None else Seen(**kept),
    )


class Decided(NamedTuple):
    """A stopped batch on which a decision was just recorded."""

    stops: Sequence[str]
    before: str | None  # the decision whose place it takes
    by: str | None  # who had made that


def decide(
    cursor: Cursor,
    pipeline: str,
    stream_id: str | None,
    batch_id: int,
    action: str,
    *,
    who: str,
    why: str,
    seen: dt.datetime | None = None,
) -> Decided | None:
    """Record a decision on a stopped batch that was not delivered since; return None where there is no such batch.

    `seen` is when the stop was made that the person saw: of one that was decided on since, or has stopped again, None
    is returned, too.
    """
    STATEMENTS.execute(
        cursor,
        "decide",
        pipeline=pipeline,
        stream=stream_id,
        batch=batch_id,
        decision=action,
        who=who,
        why=why,
        seen=seen,
    )
    found = cursor.fetchone()
    return None if found is None else Decided(*found)


def undecide(cursor: Cursor, stream_id: str, batch_id: int) -> None:
    """Forget the decision on a stopped batch, which stays stopped."""
    STATEMENTS.execute(cursor, "undecide", stream=stream_id, batch=batch_id)


SHARE_STOP = "more than max_quarantine_share allows"  # in the stop of a batch with too many rows held
FEWER_STOP = "more than max_fewer_share allows"  # in the stop of a replay with too few rows delivered
UNREADABLE_STOP = " can't be read: "  # in the stop of a batch, between a file and the reason
LATE_TOLD = "late: "  # begins the one of the sentences on malformed records that names no file: of late ones
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
