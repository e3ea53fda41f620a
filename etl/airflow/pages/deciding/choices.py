"""The held rows that a person chooses on a page, and what a release of them asks Airflow for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from etl.airflow.pages.records import fetch_rows
from etl.common.database import Cursor
from etl.ledger.decisions import Action as Decision

Action = Literal["release", "correct", "discard"]  # of held rows; the second is a release of corrected ones
Decides = Literal[
    "release", "correct", "discard", "decide"
]  # what a reader may: the last is of stopped batches

MOST = 1_000  # rows in one decision from a page
DOES = {"release": "Release", "correct": "Correct and release", "discard": "Discard"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One held row, or all that a delivery holds."""

    pipeline: str
    action: Action
    row: int | None = None
    delivery: int | None = None

    @property
    def identity(self) -> list[object]:
        return [self.pipeline, self.action, self.row, self.delivery]


@dataclass(frozen=True, kw_only=True)
class StopChoice:
    """What is to be done with the stopped batch of a pipeline."""

    pipeline: str
    action: Decision

    @property
    def identity(self) -> list[object]:
        return [self.pipeline, "stop", self.action]


@dataclass(frozen=True, kw_only=True)
class AlertChoice:
    """An alert that is to be taken up."""

    pipeline: str
    alert: int

    @property
    def identity(self) -> list[object]:
        return [self.pipeline, "alert", self.alert]


AnyChoice = Choice | StopChoice | AlertChoice


@dataclass(frozen=True, kw_only=True)
class HeldId:
    quarantine_id: int
    uncorrected: bool  # it can't be released as it is


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The held rows of a choice, as they are now."""

    ids: tuple[int, ...]  # on which is decided
    uncorrected: int  # can't be released as they are: a release leaves them
    more: bool  # than one decision from a page takes

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.ids).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest:
    """A release that an Airflow run was asked for."""

    rows: int
    who: str | None
    why: str
    state: str  # of the Airflow run
    paused: bool

    @property
    def waits(self) -> bool:
        """Return True if the run does not begin before somebody unpauses the DAG."""
        return self.paused and self.state == "queued"

    @property
    def goes_on(self) -> bool:
        """Return True if the run ends without anybody's doing."""
        return self.state in ("queued", "running") and not self.waits


def rows_of(cursor: Cursor, choice: Choice) -> Rows:
    held = fetch_rows(
        cursor,
        "held_ids",
        HeldId,
        pipeline=choice.pipeline,
        row=choice.row,
        delivery=choice.delivery,
        limit=MOST + 1,
    )
    uncorrected = sum(one.uncorrected for one in held) if choice.action == "release" else 0
    ids = tuple(one.quarantine_id for one in held if not (uncorrected and one.uncorrected))
    return Rows(ids=ids, uncorrected=uncorrected, more=len(held) > MOST)
