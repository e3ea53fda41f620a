"""Counts on the executors which stored rows another suite would hold or let through. It writes nothing.

The stage's own `split_rows` separates the rows, so this can't differ from what a run would do. Like the stage, this
module imports neither pyspark nor pyiceberg.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from etl.common.record_columns import REASONS
from etl.delivery.row_filter import RowFilter, TaskReport, cast_to, split_rows


@dataclass(kw_only=True)
class SuiteDifference:
    """What one task saw of stored rows."""

    report: TaskReport  # as the stage would have reported it
    newly_held: int = 0  # delivered rows that would be held
    newly_delivered: int = 0  # held rows that would be delivered
    held_by: Counter[str] = field(default_factory=Counter)  # reason -> rows that it would newly hold
    freed_of: Counter[str] = field(default_factory=Counter)  # stored reason -> rows that would be delivered


def cross(
    row_filter: RowFilter, batches: Iterator[pa.RecordBatch], *, partition: int, number: int
) -> SuiteDifference:
    """Split stored rows, whose `_reasons` say why they were held, and compare. Keeps nothing but counts."""
    difference = SuiteDifference(report=TaskReport.of(row_filter, partition=partition, number=number))
    for batch in batches:
        _cross(row_filter, batch, difference)
    return difference


def _cross(row_filter: RowFilter, batch: pa.RecordBatch, difference: SuiteDifference) -> None:
    held, reasons = split_rows(row_filter, batch, cast_to(batch, row_filter.columns), difference.report)
    if held is None:
        held = pa.repeat(False, batch.num_rows)
    stored = batch.column(REASONS)
    was_held = stored.is_valid()
    difference.report.quarantined += held.true_count
    difference.report.delivered += batch.num_rows - held.true_count
    for was, reasons_now in zip(was_held.filter(held).to_pylist(), reasons, strict=True):
        if not was:
            difference.newly_held += 1
            difference.held_by.update(reasons_now)
    for was in stored.filter(pc.and_(was_held, pc.invert(held))).to_pylist():
        difference.newly_delivered += 1
        difference.freed_of.update(was)
