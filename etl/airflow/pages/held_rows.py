"""The pages of held rows: their list, one row whole, and the form of a decision on some of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from etl.airflow.pages.deciding.choices import DOES, MOST, Choice, Rows, rows_of
from etl.airflow.pages.records import (
    LAST,
    LONGEST_REPORT,
    DeliveryRow,
    RuleRow,
    fetch_rows,
    reasons_of_last,
)
from etl.airflow.pages.render import Frame, NotThere, Page, pipeline_row, render
from etl.airflow.pages.report import read_report
from etl.airflow.pages.rows import HeldRow, HeldWhole, content_of, table, values
from etl.airflow.pages.verdicts import verdicts_of
from etl.airflow.run_form import LONGEST_CORRECTIONS
from etl.common.database import Cursor

ROWS = 50  # on a page
LONGEST_ROW = 4_000  # characters of a row that a list reads
LONGEST_WHOLE = 60_000  # and its own page


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which quarantined rows to show."""

    rule: str | None = None
    batch: int | None = None  # a delivery id
    status: str | None = "held"  # None: all
    since: dt.date | None = None
    until: dt.date | None = None
    before: tuple[int, int] = (LAST, LAST)  # (commit_seq, quarantine_id) of the last row seen

    def query(self) -> Mapping[str, object]:
        """Return the choice as the address has it."""
        values = {"rule": self.rule, "batch": self.batch, "since": self.since, "until": self.until}
        return {name: value for name, value in values.items() if value is not None} | {
            "status": self.status or "all"
        }


def quarantine(cursor: Cursor, name: str, frame: Frame, *, wanted: Wanted) -> Page:
    """Show quarantined rows, newest batch first, by rule, batch, status and time."""
    row = pipeline_row(cursor, name)
    rows = fetch_held(cursor, name, wanted, ROWS + 1)
    rules = reasons_of_last(cursor, name)
    columns = _columns_by_rule(cursor, name, rows)
    return render(
        "quarantine.html",
        frame,
        row=row,
        wanted=wanted,
        table=table(rows[:ROWS], columns),
        older=(rows[ROWS - 1].commit_seq, rows[ROWS - 1].quarantine_id) if len(rows) > ROWS else None,
        rules=rules if wanted.rule is None or wanted.rule in rules else [wanted.rule, *rules],
    )


def held_row(cursor: Cursor, name: str, frame: Frame, *, number: int) -> Page:
    """Show one quarantined row whole: every column, the record as it was read, and why it is held.

    Raises NotThere.
    """
    it = _held_whole(cursor, name, number)
    rules = fetch_rows(cursor, "rules", RuleRow, deliveries=[it.delivery_id])
    by_reason = {one.reason: one for one in verdicts_of(rules, read_report(it.report))}
    content = content_of(it.row)
    return render(
        "row.html",
        frame,
        name=name,
        it=it,
        reasons=[(reason, by_reason.get(reason)) for reason in it.reasons],
        values=values(content, it.reasons, by_reason),
        unread=it.row is not None and not content,
        cut=(it.row_length or 0) > LONGEST_WHOLE,
        raw_cut=(it.raw_length or 0) > LONGEST_WHOLE,
    )


def _held_whole(cursor: Cursor, name: str, number: int) -> HeldWhole:
    """Return one quarantined row. Raises NotThere."""
    about = fetch_rows(
        cursor,
        "held_row",
        HeldWhole,
        pipeline=name,
        row=number,
        longest=LONGEST_WHOLE,
        longest_report=LONGEST_REPORT,
    )
    if not about:
        raise NotThere(f"{name} has no quarantined row {number}")
    return about[0]


def decision(cursor: Cursor, frame: Frame, *, choice: Choice, sign: Callable[[Rows], str]) -> Page:
    """Show exactly which rows are decided on, and the form that asks why, and for corrections where these are made."""
    rows = rows_of(cursor, choice)
    one = choice.row if choice.action == "correct" else None
    it = None if one is None else _held_whole(cursor, choice.pipeline, one)
    return render(
        "decision.html",
        frame,
        choice=choice,
        rows=rows,
        note=sign(rows),
        prefilled=_prefilled(it),
        raw=it.raw if it and it.row is None else None,
        MOST=MOST,
        DOES=DOES,
        LONGEST_CORRECTIONS=LONGEST_CORRECTIONS,
    )


def _prefilled(it: HeldWhole | None) -> str:
    """Return the columns of the row that is to be corrected, as it is kept: written anew, a number might be another one.

    It is an empty object where the row has no columns, or too many to be shown.
    """
    if it is None or it.row is None or len(it.row) != it.row_length:
        return "{}"
    return it.row


def fetch_held(cursor: Cursor, name: str, wanted: Wanted, limit: int) -> list[HeldRow]:
    """Fetch the rows that are wanted, newest batch first, their long values cut."""
    return fetch_rows(
        cursor,
        "held_rows",
        HeldRow,
        pipeline=name,
        status=wanted.status,
        reason=wanted.rule,
        delivery=wanted.batch,
        since=wanted.since,
        until=_day_after(wanted.until),
        before_commit=wanted.before[0],
        before_row=wanted.before[1],
        limit=limit,
        longest=LONGEST_ROW,
    )


def _day_after(day: dt.date | None) -> dt.date | None:
    """Return the day after; None for no day, and after the calendar's last day, too: nothing is later."""
    return None if day is None or day == dt.date.max else day + dt.timedelta(days=1)


def _columns_by_rule(cursor: Cursor, name: str, rows: Sequence[HeldRow]) -> dict[str, tuple[str, ...]]:
    """Return the columns that each rule speaks of, by the report of the newest batch among the rows."""
    if not rows:
        return {}
    newest = rows[0].delivery_id
    [it] = fetch_rows(cursor, "delivery", DeliveryRow, pipeline=name, delivery=newest, longest=LONGEST_REPORT)
    rules = fetch_rows(cursor, "rules", RuleRow, deliveries=[newest])
    return {one.reason: one.observed.columns for one in verdicts_of(rules, read_report(it.report))}
