"""Keeps the troubles that people are told of, and the messages that tell of them until somebody hears or it is over.

Every function takes a cursor inside the caller's transaction.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from etl.common.database import Cursor, row, rows
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
    return resolve(cursor, [number for (number,) in cursor.fetchall()], by)


def end_all(cursor: Cursor, pipelines: Sequence[str], by: str) -> list[int]:
    """End the open alerts of these pipelines, because of what `by` says; return them."""
    STATEMENTS.execute(cursor, "open_of_pipelines", pipelines=list(pipelines))
    return resolve(cursor, [number for (number,) in cursor.fetchall()], by)


def acknowledge(cursor: Cursor, alerts: Sequence[int], who: str) -> list[int]:
    """Note who has taken up these alerts, of which no reminder is sent any more; return those that nobody had."""
    STATEMENTS.execute(cursor, "acknowledge", alerts=list(alerts), who=who)
    return _told_on(cursor, "acknowledged")


def _told_on(cursor: Cursor, event: Event) -> list[int]:
    """Tell of the alerts that a statement returned all who know of them; return their numbers."""
    numbers = [number for (number,) in cursor.fetchall()]
    if numbers:
        STATEMENTS.execute(cursor, "tell_who_knows", alerts=numbers, event=event)
    return numbers


def remind(cursor: Cursor, pipeline: str, every: dt.timedelta) -> None:
    """Write a reminder of the pipeline's alerts that nobody has taken up, where the last message is `every` old."""
    STATEMENTS.execute(cursor, "remind", pipeline=pipeline, every=every)


def next_due(
    cursor: Cursor, destinations: Sequence[str], *, after: int, pipeline: str | None
) -> Message | None:
    """Return the next message behind `after` that is to be sent, locked until the transaction ends; None: no other."""
    STATEMENTS.execute(cursor, "next_due", destinations=list(destinations), after=after, pipeline=pipeline)
    found = row(cursor)
    if found is None:
        return None
    own = {name: found.pop(name) for name in ("message_id", "destination", "event")}
    return Message(alert=Alert(**found), **own)


def sent(cursor: Cursor, message: Message) -> None:
    """Note that the destination has taken the message."""
    STATEMENTS.execute(cursor, "sent", message=message.message_id)


def not_taken(cursor: Cursor, message: Message, problem: str) -> None:
    """Note why the message was not taken; it is tried again later."""
    STATEMENTS.execute(cursor, "not_taken", message=message.message_id, problem=problem)


def alerts(
    cursor: Cursor, pipeline: str | None, *, closed: bool = False, limit: int = 100
) -> list[AlertState]:
    """Return the open alerts of one pipeline or of all, newest first; with `closed`, the newest of all alerts."""
    STATEMENTS.execute(cursor, "alerts", pipeline=pipeline, closed=closed, limit=limit)
    return [_state(one) for one in rows(cursor)]


def _state(found: dict[str, Any]) -> AlertState:
    unsent, problem = found.pop("unsent"), found.pop("problem")
    return AlertState(alert=Alert(**found), unsent=unsent, problem=problem)
