"""Shows quarantined rows to people, and marks the value that breaks a rule."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etl.airflow.pages.formatting import cut
from etl.airflow.pages.records import CommittedRow
from etl.airflow.pages.verdicts import Verdict
from etl.ledger.quarantine import columns_not_as_read

SHOWN_COLUMNS = 12  # of a quarantined row in a list
LONGEST_CELL = 2_000  # characters of one of its values on its own page
MOST_COLUMNS = 500  # there
MALFORMED = "malformed"  # why a record is held that could not be parsed


@dataclass(frozen=True, kw_only=True)
class HeldRow:
    """One quarantined row, its long values cut."""

    commit_seq: int
    committed_at: dt.datetime
    batch_id: int
    kind: str
    quarantine_id: int
    delivery_id: int
    reasons: Sequence[str]
    status: str
    source_path: str | None
    raw: str | None
    row: str | None
    detail: str | None  # what is wrong with a malformed record


@dataclass(frozen=True, kw_only=True)
class HeldWhole(CommittedRow):
    """One quarantined row whole."""

    quarantine_id: int
    stream_id: str
    reasons: Sequence[str]
    status: str
    source_path: str | None
    detail: str | None
    raw: str | None
    raw_length: int | None
    row: str | None
    row_length: int | None
    released_by: int | None
    decided_by: str | None
    why: str | None
    decided_at: dt.datetime | None
    replaces: bool  # each batch takes the place of all before it
    report: str | None

    @property
    def uncorrected(self) -> bool:
        """Return True if the row can't be released as it is."""
        return self.row is None or bool(columns_not_as_read(self.reasons))


@dataclass(frozen=True, kw_only=True)
class Table:
    """Quarantined rows as one table; `marked` says which values break a rule."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    left_out: int = 0  # columns


@dataclass(frozen=True, kw_only=True)
class Line:
    row: HeldRow
    values: tuple[tuple[str, bool], ...]  # text, and whether a rule that it breaks speaks of it
    raw: str | None  # instead of values, where the record could not be parsed


@dataclass(frozen=True, kw_only=True)
class Value:
    name: str
    text: str
    broken: tuple[str, ...]  # rules that the row breaks and that speak of this column


def table(rows: Sequence[HeldRow], columns: Mapping[str, tuple[str, ...]]) -> Table:
    """Make the table of the rows: columns that rules speak of first, then the others as they are in the row."""
    contents = [content_of(row.row) for row in rows]
    broken = [{name for reason in row.reasons for name in columns.get(reason, ())} for row in rows]
    names = list(dict.fromkeys(name for content in contents for name in content))
    marked = set().union(*broken)
    names.sort(key=lambda name: name not in marked)
    shown = names[:SHOWN_COLUMNS]
    return Table(
        columns=tuple(cut(name, 60) for name in shown),
        lines=tuple(
            Line(
                row=row,
                values=tuple(
                    (cut(content[name], 80) if name in content else "", name in bad) for name in shown
                ),
                raw=cut(row.raw or row.row or "", 300) if MALFORMED in row.reasons or not content else None,
            )
            for row, content, bad in zip(rows, contents, broken, strict=True)
        ),
        left_out=len(names) - len(shown),
    )


def content_of(text: str | None) -> dict[str, Any]:
    """Read a row's JSON; nothing where it was cut or is no object."""
    try:
        content = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def values(
    content: Mapping[str, Any], reasons: Sequence[str], by_reason: Mapping[str, Verdict]
) -> list[Value]:
    """Return every column of one row, each with the rules that it breaks; at most MOST_COLUMNS."""
    return [
        Value(
            name=cut(column, 200),
            text=cut(value, LONGEST_CELL),
            broken=tuple(
                reason
                for reason in reasons
                if reason in by_reason and column in by_reason[reason].observed.columns
            ),
        )
        for column, value in list(content.items())[:MOST_COLUMNS]
    ]
