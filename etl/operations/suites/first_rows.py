"""Looks through rows on the executors, and keeps the first of them to be shown. It writes nothing.

Like the stage, whose own `split_rows` separates the rows, this module imports neither pyspark nor pyiceberg.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.delivery.row_filter import RowFilter, TaskReport, cast_to, split_rows
from etl.sinks.limits import repaired
from etl.sinks.warehouse.staging import plain_values

Values = tuple[Any, ...]


@dataclass(kw_only=True)
class Seen:
    """What one task saw: counts, and the first rows of either fate."""

    report: TaskReport
    delivered: list[Values] = field(default_factory=list)
    held: list[tuple[list[str], Values]] = field(default_factory=list)


def look_through(
    row_filter: RowFilter, most: int, batches: Iterator[pa.RecordBatch], *, partition: int, number: int
) -> Seen:
    """Split the rows as the stage does, and keep at most `most` of each kind."""
    seen = Seen(report=TaskReport.of(row_filter, partition=partition, number=number))
    for batch in batches:
        rows = cast_to(batch, row_filter.columns)
        held, reasons = split_rows(row_filter, batch, rows, seen.report)
        if held is None:
            held = pa.repeat(False, batch.num_rows)
        seen.report.quarantined += len(reasons)
        seen.report.delivered += batch.num_rows - len(reasons)
        seen.delivered += _values(rows.filter(pc.invert(held)).slice(0, most - len(seen.delivered)))
        bad = _values(rows.filter(held).slice(0, most - len(seen.held)))
        seen.held += zip(reasons[: len(bad)], bad, strict=True)
    return seen


def _values(rows: pa.RecordBatch) -> list[Values]:
    return list(zip(*(plain_values(repaired(column)) for column in rows.columns), strict=True))
