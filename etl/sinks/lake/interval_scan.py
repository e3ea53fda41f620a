"""Finds the deliveries that have rows in an interval of a column, from the lake, which keeps every change of a key.

The lake has held rows with their typed columns, in a table of their own, which is read in the same way.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pyarrow.compute as pc
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, IcebergType, NestedField, TimestampType, TimestamptzType

from etl.common.errors import SetupError
from etl.pipeline import Pipeline
from etl.sinks.columns import DELIVERY
from etl.sinks.lake.table import LakeTable

Interval = tuple[dt.datetime, dt.datetime]  # with time zones; the end is exclusive


def rows_within(table: LakeTable, pointer: str, pipeline: Pipeline, interval: Interval) -> Counter[int]:
    """Count the rows of each delivery with the declared column in the interval, as the table is at `pointer`.

    Days begin at midnight in UTC, and so do times without a zone. Only files that may have such rows are
    read, of them two columns.
    """
    at = table.at(pointer)
    column = _column(pipeline, at.schema())
    start, end = (_literal(column.field_type, moment) for moment in interval)
    # Their own __init__ takes a name and a value, which their base class hides.
    from_start: Any = GreaterThanOrEqual
    before_end: Any = LessThan
    in_interval = And(from_start(column.name, start), before_end(column.name, end))
    scan = at.scan(row_filter=in_interval, selected_fields=(DELIVERY,))
    reader = ArrowScan(at.metadata, at.io, scan.projection(), in_interval)
    counts = Counter[int]()
    for task in scan.plan_files():  # one by one: pyiceberg's own loop reads all of them ahead
        for batch in reader.to_record_batches([task]):
            for one in pc.value_counts(batch.column(DELIVERY)).to_pylist():
                counts[one["values"]] += one["counts"]
    return counts


def _column(pipeline: Pipeline, schema: Schema) -> NestedField:
    """Return the declared column; raise SetupError where it is none of the table's with dates or times."""
    name = pipeline.interval
    if name is None:
        raise SetupError(
            f"Pipeline {pipeline.name} declares no interval, so no interval of it can be replayed",
            remedy=f"declare interval=…, or name deliveries: `sluice replay {pipeline.name} --deliveries A..B`",
        )
    field = schema.find_field(name) if name in schema.column_names else None
    if field is None or not isinstance(field.field_type, DateType | TimestampType | TimestamptzType):
        raise SetupError(
            f"Pipeline {pipeline.name} declares interval={name!r}, which is no column of {pipeline.table} with"
            f" dates or times: it is {'missing' if field is None else field.field_type}",
            remedy="declare a column of dates or timestamps, or the paths of its files, such as"
            ' interval="dt={interval:%Y-%m-%d}"',
        )
    return field


def _literal(kind: IcebergType, moment: dt.datetime) -> str:
    """Return the least value of the column not before the moment, as Iceberg's expressions take it."""
    moment = moment.astimezone(dt.UTC)
    if isinstance(kind, TimestamptzType):
        return moment.isoformat()
    if isinstance(kind, TimestampType):
        return moment.replace(tzinfo=None).isoformat()
    begun = moment.time() > dt.time()
    return (moment.date() + dt.timedelta(days=begun)).isoformat()
