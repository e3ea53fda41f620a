"""Draws how a pipeline's batches ran: rates, the parts of their time, state, late rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etl.airflow.pages import charts, formatting
from etl.airflow.pages.records import LAST, ProgressRow, fetch_rows
from etl.airflow.pages.render import PARTS
from etl.common.database import Cursor

OptionalChart = tuple[str, Sequence[float | None], Callable[[float | None], str]]


def progress_of(cursor: Cursor, name: str, *, before: int = LAST) -> list[ProgressRow]:
    """Return what Spark told of the pipeline's batches before a place, newest first.

    They are among the batches that the pipeline's other charts have.
    """
    return fetch_rows(cursor, "progress", ProgressRow, pipeline=name, before=before, limit=charts.BATCHES)


def progress_charts(old_first: Sequence[ProgressRow]) -> list[charts.Chart]:
    """Draw rates and times, and what else some batch has a value of.

    That is state, watermark, what was left out, and how far behind its topics the pipeline was.
    """
    rates = {"processed": [one.processed_rate for one in old_first]}
    if any(one.input_rate for one in old_first):
        rates["came in"] = [one.input_rate for one in old_first]
    parts = {said: [one.phase(part) for one in old_first] for part, said in PARTS.items()}
    drawn = [
        charts.lines("Rows per second", old_first, rates),
        charts.stacked("Time of a batch", old_first, parts, formatting.briefly),
    ]
    optional: list[OptionalChart] = [
        ("Rows of state", [one.state_rows for one in old_first], formatting.rounded),
        ("Memory of the state", [one.state_bytes for one in old_first], formatting.sized),
        ("Watermark behind the clock", [one.lag for one in old_first], formatting.seconds),
        ("Left out behind the watermark", [one.dropped for one in old_first], formatting.rounded),
        ("Doubles left out", [one.doubles for one in old_first], formatting.rounded),
        ("Records still on the topics", [one.behind for one in old_first], formatting.rounded),
    ]
    return drawn + [
        charts.amounts(title, old_first, values, write)
        for title, values, write in optional
        if any(value is not None for value in values)
    ]
