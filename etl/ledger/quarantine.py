"""The quarantine: finds rows, shows one, exports them, discards them.

Each row is held, released, discarded or superseded, and only a held one can change: it is released or discarded once,
however many try.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from etl.common.database import rows_as, transaction
from etl.common.errors import NeedsPerson, SetupError
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.common.wording import first_few, pluralize

STATEMENTS = Statements(__name__)

HELD = "held"
_NOT_AS_READ = re.compile(r"postgres_encoding\((.*)\)")  # the reason that staging gives to such text


@dataclass(frozen=True, kw_only=True)
class RowSelection:
    """Which rows of the quarantine a command means; a field that is None leaves none out."""

    ids: tuple[int, ...] | None = None
    delivery: int | None = None  # that holds them
    reason: str | None = None  # which they carry, whatever else they carry
    status: str | None = HELD
    limit: int | None = None  # None: all of them

    @property
    def id_list(self) -> list[int] | None:
        """Return the ids as psycopg2 makes an array of them."""
        return None if self.ids is None else [*self.ids]

    @property
    def everything(self) -> bool:
        return self.ids is None and self.delivery is None and self.reason is None


@dataclass(frozen=True, kw_only=True)
class HeldRow:
    """One row of sluice.quarantine."""

    quarantine_id: int
    delivery_id: int  # that holds it
    stream_id: str
    batch_id: int
    reasons: Sequence[str]
    status: str
    source_path: str | None
    raw: str | None  # the record as it was read, of a malformed one
    row: str | None  # JSON text; None: it never became a row
    detail: str | None  # what is wrong with a malformed record; None where the parser does not say
    released_by: int | None  # the delivery that let it out
    decided_by: str | None
    why: str | None
    decided_at: dt.datetime | None
    held_at: dt.datetime
    superseded_by: int | None  # the delivery that replaced the one that held it

    @property
    def values(self) -> dict[str, Any] | None:
        """Return the row's values by column; None if it never became a row."""
        found: dict[str, Any] | None = None if self.row is None else json.loads(self.row)
        return found

    @property
    def not_as_read(self) -> list[str]:
        """Return the columns whose text can't be kept as it was read."""
        return columns_not_as_read(self.reasons)

    @property
    def needs_correction(self) -> bool:
        """Return True if the row can't be released as it is."""
        return self.row is None or bool(self.not_as_read)

    def export(self) -> dict[str, Any]:
        """Return the row as a line of a file of corrections: a person changes its `row`, then releases it."""
        return {
            "quarantine_id": self.quarantine_id,
            "reasons": list(self.reasons),
            "source_path": self.source_path,
            "raw": self.raw,
            "detail": self.detail,
            "row": self.values,
        }

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "row": self.values}


@dataclass(frozen=True, kw_only=True)
class HeldReason:
    """How many rows of one state carry a reason."""

    reason: str
    rows: int
    deliveries: int  # that hold them


def columns_not_as_read(reasons: Iterable[str]) -> list[str]:
    """Return the columns whose text can't be kept as it was read, by the reasons that a row is held for."""
    matches = (_NOT_AS_READ.fullmatch(reason) for reason in reasons)
    return [match[1] for match in matches if match]


def held_rows(dsn: str, pipeline: str, chosen: RowSelection) -> list[HeldRow]:
    """Return the chosen rows of the quarantine, in the order in which they were held."""
    migrate(dsn)
    with transaction(dsn) as cursor:
        STATEMENTS.execute(
            cursor,
            "chosen",
            pipeline=pipeline,
            ids=chosen.id_list,
            delivery=chosen.delivery,
            reason=chosen.reason,
            status=chosen.status,
            limit=chosen.limit,
        )
        return rows_as(cursor, HeldRow)


def by_reason(dsn: str, pipeline: str, chosen: RowSelection) -> list[HeldReason]:
    """Count the chosen rows by reason, whatever their limit, and the deliveries that hold them, most rows first.

    A row with two reasons counts under both.
    """
    migrate(dsn)
    with transaction(dsn) as cursor:
        STATEMENTS.execute(
            cursor,
            "by_reason",
            pipeline=pipeline,
            ids=chosen.id_list,
            delivery=chosen.delivery,
            reason=chosen.reason,
            status=chosen.status,
        )
        return rows_as(cursor, HeldReason)


def one_row(dsn: str, pipeline: str, number: int) -> HeldRow:
    """Return the row with this number, whatever its state; raise SetupError where there is none."""
    found = held_rows(dsn, pipeline, RowSelection(ids=(number,), status=None))
    if not found:
        raise _unknown(pipeline, [number])
    return found[0]


def require_held(found: Iterable[HeldRow], pipeline: str, ids: Sequence[int] | None) -> None:
    """Raise SetupError where a row that was named is not there, NeedsPerson where a row is held no longer."""
    seen = {one.quarantine_id: one for one in found}
    if missing := [number for number in ids or () if number not in seen]:
        raise _unknown(pipeline, missing)
    if done := [one for one in seen.values() if one.status != HELD]:
        what = f", by delivery {done[0].released_by}" if done[0].released_by else ""
        raise NeedsPerson(
            f"{len(done)} of these rows of {pipeline} are no longer held; {done[0].quarantine_id} was"
            f" {done[0].status}{what}. Nothing was changed",
            remedy=f"`sluice quarantine show {pipeline} {done[0].quarantine_id}`",
        )


def _unknown(pipeline: str, ids: Sequence[int]) -> SetupError:
    return SetupError(
        f"The quarantine of {pipeline} has no row {first_few(ids)}",
        remedy=f"`sluice quarantine list {pipeline}`",
    )


def discard(dsn: str, pipeline: str, ids: Sequence[int], *, who: str, why: str) -> int:
    """Give up the rows with these numbers, all or none; they stay on record, with who and why.

    Raises NeedsPerson where some are no longer held.
    """
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "discard", pipeline=pipeline, ids=list(ids), who=who, why=why)
        count = cursor.rowcount
        if count != len(ids):
            raise NeedsPerson(
                f"{len(ids) - count} of these {pluralize(len(ids), 'row')} of {pipeline} are no longer held: another command"
                " changed them first. Nothing was changed",
                remedy=f"`sluice quarantine list {pipeline}`",
            )
    return count
