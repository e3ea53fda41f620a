"""Keeps the troubles that people are told of, and the messages that tell of them until somebody hears or it is over.

Every function takes a cursor inside the caller's transaction.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from etl.common.database import Cursor, row, row_as, rows
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)

Event = Literal["triggered", "reminder", "acknowledged", "resolved"]


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What people are to be told of; of one pipeline, kind and matter it is the same trouble each time."""

    pipeline: str
    kind: str
    text: str
    about: str = ""  # what tells troubles of one kind apart, such as "audit"
    share_limit: float | None = None  # of kind quarantine

    @property
    def key(self) -> str:
        """Return what the trouble is known by, to whoever is told of it."""
        return "/".join(one for one in ("sluice", self.pipeline, self.kind, self.about) if one)


@dataclass(frozen=True, kw_only=True)
class Alert(Trouble):
    """A trouble on record."""

    alert_id: int
    known_as: str
    times: int
    opened_at: dt.datetime
    last_at: dt.datetime
    acknowledged_at: dt.datetime | None = None
    acknowledged_by: str | None = None
    resolved_at: dt.datetime | None = None
    resolved_by: str | None = None

    @property
    def key(self) -> str:
        """Return what it was opened by, which its pipeline may no longer be called."""
        return self.known_as


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message about an alert that a destination is to get."""

    message_id: int
    destination: str
    event: Event
    on_record: bool  # whether the ledger has its pipeline
    alert: Alert


@dataclass(frozen=True, kw_only=True)
class AlertState:
    """An alert, and how far its messages have come."""

    alert: Alert
    unsent: int
    problem: str | None  # why the last message was not taken


def open_alert(cursor: Cursor, trouble: Trouble, destinations: Sequence[str], *, again: bool = True) -> int:
    """Open an alert with a message for each destination, or count the open one once more; return its number.

    One that is only found to be still there is not counted `again`.
    """
    STATEMENTS.execute(
        cursor,
        "open_alert",
        pipeline=trouble.pipeline,
        kind=trouble.kind,
        about=trouble.about,
        known_as=trouble.key,
        text=trouble.text,
        share_limit=trouble.share_limit,
        again=int(again),
    )
    [(number, is_new)] = cursor.fetchall()
    if is_new:
        STATEMENTS.execute(
            cursor, "add_messages", alert=number, destinations=list(destinations), event="triggered"
        )
    return int(number)


def settle(cursor: Cursor, pipeline: str | None) -> list[int]:
    """End the open alerts whose trouble the ledger shows to be over, of one pipeline or of all; return them."""
    STATEMENTS.execute(cursor, "settle", pipeline=pipeline)
    return _told_on(cursor, "resolved")


def resolve(cursor: Cursor, alerts: Sequence[int], by: str) -> list[int]:
    """End these alerts, because of what `by` says; return those that were open."""
    STATEMENTS.execute(cursor, "resolve", alerts=list(alerts), by=by)
    return _told_on(cursor, "resolved")


def end_trouble(cursor: Cursor, pipeline: str, kind: str, about: str, by: str) -> list[int]:
    """End the open alert of a pipeline, kind and matter, if there is one; return it."""
    STATEMENTS.execute(cursor, "open_of", pipeline=pipeline, kind=kind, about=about)
    return resolve(cursor, _numbers(cursor), by)


def end_all(cursor: Cursor, pipelines: Sequence[str], by: str) -> list[int]:
    """End the open alerts of these pipelines, because of what `by` says; return them."""
    STATEMENTS.execute(cursor, "open_of_pipelines", pipelines=list(pipelines))
    return resolve(cursor, _numbers(cursor), by)


def acknowledge(cursor: Cursor, alerts: Sequence[int], who: str) -> list[int]:
    """Note who has taken up these alerts, of which no reminder is sent any more; return those that nobody had."""
    STATEMENTS.execute(cursor, "acknowledge", alerts=list(alerts), who=who)
    return _told_on(cursor, "acknowledged")


def _told_on(cursor: Cursor, event: Event) -> list[int]:
    """Tell of the alerts that a statement returned all who know of them; return their numbers."""
    if numbers := _numbers(cursor):
        STATEMENTS.execute(cursor, "drop_untold", alerts=numbers)
        STATEMENTS.execute(cursor, "tell_who_knows", alerts=numbers, event=event)
    return numbers


def _numbers(cursor: Cursor) -> list[int]:
    """Return the alerts that a statement found."""
    return [number for (number,) in cursor.fetchall()]


def end_thresholds_beyond(cursor: Cursor, pipelines: Collection[str], by: str) -> list[int]:
    """End the open alerts of thresholds of all other pipelines; return them."""
    STATEMENTS.execute(cursor, "thresholds_beyond", pipelines=list(pipelines))
    return resolve(cursor, _numbers(cursor), by)


def remind(
    cursor: Cursor, repeats: Mapping[str, dt.timedelta | None], *, otherwise: dt.timedelta | None
) -> None:
    """Write a reminder of each alert that nobody has taken up, where the last message is as old as `repeats` says.

    That is by pipeline, of the others `otherwise`; None for never.
    """
    STATEMENTS.execute(cursor, "lock_waiting")
    waiting = _numbers(cursor)
    STATEMENTS.execute(
        cursor,
        "remind",
        alerts=waiting,
        pipelines=list(repeats),
        repeats=list(repeats.values()),
        otherwise=otherwise,
    )


def claim(cursor: Cursor, destinations: Sequence[str], pipeline: str | None) -> Message | None:
    """Claim the next message that is due, so that no other sender has it within minutes; None: there is none.

    Once the transaction has ended it is to be sent, and what became of it noted.
    """
    STATEMENTS.execute(cursor, "claim", destinations=list(destinations), pipeline=pipeline)
    found = row(cursor)
    if found is None:
        return None
    own = {name: found.pop(name) for name in ("message_id", "destination", "event", "on_record")}
    return Message(alert=Alert(**found), **own)


def note(cursor: Cursor, message: Message, problem: str | None) -> None:
    """Note that the destination has taken the message, or by what problem it has not; then it is tried again later."""
    if problem is None:
        STATEMENTS.execute(cursor, "sent", message=message.message_id)
    else:
        STATEMENTS.execute(cursor, "not_taken", message=message.message_id, problem=problem)


def alert(cursor: Cursor, pipeline: str, number: int) -> Alert | None:
    """Return the pipeline's alert of this number; None: it has none."""
    return row_as(STATEMENTS.execute(cursor, "alert", pipeline=pipeline, alert=number), Alert)


def alerts(
    cursor: Cursor, pipeline: str | None, *, closed: bool = False, limit: int | None = None
) -> list[AlertState]:
    """Return open alerts of one pipeline or of all, newest first, all or so many; with `closed` also those that are over."""
    STATEMENTS.execute(cursor, "alerts", pipeline=pipeline, closed=closed, limit=limit)
    return [_state(one) for one in rows(cursor)]


def count_open(cursor: Cursor, pipeline: str) -> int:
    """Return how many alerts of the pipeline are open."""
    STATEMENTS.execute(cursor, "count_open", pipeline=pipeline)
    [(count,)] = cursor.fetchall()
    return int(count)


def _state(found: dict[str, Any]) -> AlertState:
    unsent, problem = found.pop("unsent"), found.pop("problem")
    return AlertState(alert=Alert(**found), unsent=unsent, problem=problem)


def old(cursor: Cursor, pipeline: str, retention: dt.timedelta) -> int:
    """Return how many alerts of the pipeline are over for longer than `retention`, with nothing left to send."""
    STATEMENTS.execute(cursor, "old", pipeline=pipeline, retention=retention)
    [(count,)] = cursor.fetchall()
    return int(count)


def forget_old(cursor: Cursor, pipeline: str, retention: dt.timedelta, *, most: int) -> None:
    """Take out the oldest `most` of these, with their messages."""
    STATEMENTS.execute(cursor, "forget_old", pipeline=pipeline, retention=retention, most=most)
