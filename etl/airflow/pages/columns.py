"""The metrics of columns on the pages: the figures of one batch, and each column over time."""

from __future__ import annotations

from collections.abc import Sequence

from etl.airflow.pages import charts, formatting
from etl.airflow.pages.records import LAST, ColumnRow, fetch_rows, older_than
from etl.airflow.pages.render import LISTED, Frame, NotThere, Page, pipeline_row, render
from etl.common.database import Cursor

MOST = 60  # columns in a list


def columns_of(cursor: Cursor, delivery: int | None) -> list[ColumnRow]:
    """Return the figures of a delivery's columns, in the order of the declaration."""
    return fetch_rows(cursor, "columns", ColumnRow, deliveries=[delivery], limit=MOST) if delivery else []


def column(cursor: Cursor, name: str, frame: Frame, *, column: str, before: int = LAST) -> Page:
    """Show one column over time: its nulls, how many values it has, where they lie, how old they are.

    Raises NotThere where the last batches have no figures of it.
    """
    row = pipeline_row(cursor, name)
    batches = fetch_rows(
        cursor,
        "column_of_batches",
        ColumnRow,
        pipeline=name,
        column=column,
        before=before,
        limit=charts.BATCHES,
    )
    if not batches and before == LAST:
        raise NotThere(
            f"The last {charts.BATCHES} batches of {name} keep no metrics of a column {formatting.cut(column)!r}"
        )
    return render(
        "column.html",
        frame,
        row=row,
        column=column,
        batches=batches[: 2 * LISTED],
        is_newest=before == LAST,
        older=older_than(cursor, name, before=before, limit=charts.BATCHES, releases=False),
        drawn=_charts(batches[::-1]),
    )


def _charts(old_first: Sequence[ColumnRow]) -> list[charts.Chart]:
    """Draw the charts of which some batch has a value."""

    def known(one: str) -> bool:
        return any(getattr(batch, one) is not None for batch in old_first)

    bars = [
        ("Null share", "null_share", formatting.share),
        ("Different values, about", "distinct_estimate", formatting.rounded),
        ("Age of the newest row at delivery", "age", formatting.seconds),
    ]
    lines = [
        ("Mean", {"mean": "mean"}),
        ("5 %, half and 95 % of the numbers lie below", {"95 %": "p95", "median": "p50", "5 %": "p05"}),
        ("Least and greatest", {"greatest": "maximum", "least": "minimum"}),
    ]
    rows = [
        charts.amounts("Rows per batch", old_first, [one.rows_seen for one in old_first], formatting.number)
    ]
    known_bars = [
        charts.amounts(title, old_first, [getattr(batch, one) for batch in old_first], write)
        for title, one, write in bars
        if known(one)
    ]
    drawn = [
        charts.lines(
            title, old_first, {said: [getattr(b, one) for b in old_first] for said, one in of.items()}
        )
        for title, of in lines
        if known(next(iter(of.values())))
    ]
    return rows + known_bars + drawn
