"""Opens both sinks of a pipeline, and refuses tables that could not take its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from psycopg2 import sql

from etl.common.database import Cursor, transaction
from etl.common.errors import TableRefused
from etl.common.record_columns import DETAIL, RAW, REASONS, SOURCE_PATH
from etl.common.statements import Statements
from etl.common.wording import WHY
from etl.ledger.deliveries import LiveDelivery, deliveries_in_force
from etl.ledger.streams import current_stream
from etl.pipeline import Partition, Pipeline, Sink
from etl.sinks.columns import in_words
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.references import columns_with_values
from etl.sinks.lake.schema import arrow_schema
from etl.sinks.lake.table import LakeTable
from etl.sinks.modes import SinkMode, mode_of
from etl.sinks.warehouse.row_size import table_limits
from etl.sinks.warehouse.table import Warehouse

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class Sinks:
    """A pipeline's two sinks; once they are opened, the tables exist and fit the rows."""

    pipeline: Pipeline
    columns: pa.Schema  # the transform's output in the common types
    dsn: str = field(repr=False)
    lake: Lake
    warehouse: Warehouse
    table: LakeTable
    quarantine: LakeTable

    @property
    def mode(self) -> SinkMode:
        return self.warehouse.mode


def open_sinks(pipeline: Pipeline, columns: pa.Schema, *, dsn: str, lake: Lake, fills: bool = False) -> Sinks:
    """Create both sinks' tables where they are missing; raise TableRefused where they do not fit.

    A table or a column that deliveries had filled, and that is gone, is not covered up by an empty one, nor is
    a table without a row gone on with, unless this run `fills` it.
    """
    refuse_unfit(pipeline, columns)
    sinks = closed_sinks(pipeline, columns, dsn=dsn, lake=lake)
    with transaction(dsn) as cursor:
        if not fills:
            _refuse_lost(cursor, sinks)
        sinks.warehouse.open(cursor)
    # The one before may hold the table for its index, and this one writes to S3.
    with transaction(dsn) as cursor:
        sinks.table.create(cursor, columns, pipeline.sink.partition_by)
        sinks.quarantine.create(cursor, quarantine_columns(columns), None)
    return sinks


def closed_sinks(pipeline: Pipeline, columns: pa.Schema, *, dsn: str, lake: Lake) -> Sinks:
    """Return both sinks as they are declared, whether or not their tables are there."""
    return Sinks(
        pipeline=pipeline,
        columns=columns,
        dsn=dsn,
        lake=lake,
        warehouse=Warehouse(
            pipeline=pipeline.name,
            table_schema=pipeline.table_schema,
            table_name=pipeline.table_name,
            columns=columns,
            mode=mode_of(pipeline.sink),
        ),
        table=LakeTable.of(lake, pipeline.table),
        quarantine=LakeTable.of(lake, pipeline.quarantine_table),
    )


def _refuse_lost(cursor: Cursor, sinks: Sinks) -> None:
    """Raise TableRefused where PostgreSQL lacks the table, a column or all rows that deliveries had filled."""
    pointer = sinks.table.pointer(cursor)
    if pointer is None:
        return
    different = sinks.warehouse.difference(cursor)
    lacking = None if different is None else list(different.added)
    if lacking == [] and _emptied(cursor, sinks):
        raise _lost(cursor, sinks, "holds no row")
    if lacking is not None and (blank := _blank(cursor, sinks, pointer)):
        raise _lost(cursor, sinks, f"has no value any more in the columns {', '.join(blank)}")
    if lacking == []:
        return
    metadata = sinks.table.load(pointer)
    if metadata.current_snapshot() is None:
        return
    there = set(arrow_schema(metadata.schema()).names)
    lost = None if lacking is None else [one for one in lacking if one in there]
    if lost and different and different.others:
        raise TableRefused(
            f"Table {sinks.pipeline.table} has no longer the columns {', '.join(lost)}, and does not fit pipeline"
            f" {sinks.pipeline.name} otherwise: {'; '.join(different.others)}",
            remedy="where a column was renamed, give it its name again (`ALTER TABLE … RENAME COLUMN … TO …`), which brings"
            " all of it back; else take off what the pipeline does not deliver; then run again",
        )
    if lost != []:  # else they are new ones, which the first delivery adds
        raise _lost(
            cursor, sinks, "is gone" if lost is None else f"has no longer the columns {', '.join(lost)}"
        )


def _emptied(cursor: Cursor, sinks: Sinks) -> bool:
    """Tell whether the table holds none of the rows that the ledger says it has, as one that was made anew by hand.

    Of a table that each delivery replaces, the next one brings all rows back.
    """
    if sinks.mode.only_newest:
        return False
    STATEMENTS.execute(cursor, "emptied", target=sinks.warehouse.target, pipeline=sinks.pipeline.name)
    [(emptied,)] = cursor.fetchall()
    return bool(emptied)


def _blank(cursor: Cursor, sinks: Sinks, pointer: str) -> list[str]:
    """Return the columns without a value of which the lake has some, as of one that was dropped and put back by hand.

    Only columns are looked at that came after another one was dropped. Where rows are overwritten, or replaced, what the
    lake has may be older than the table's nulls.
    """
    if sinks.mode.key or sinks.mode.only_newest:
        return []
    target = sinks.warehouse.target
    STATEMENTS.execute(cursor, "after_dropped", target=target.as_string(cursor))
    later = {name for (name,) in cursor.fetchall() if name in sinks.columns.names}
    if later:
        later &= columns_with_values(sinks.table, sinks.table.load(pointer))
    return sorted(name for name in later if _without_value(cursor, target, name))


def _without_value(cursor: Cursor, target: sql.Identifier, column: str) -> bool:
    STATEMENTS.execute(cursor, "without_value", target=target, column=sql.Identifier(column))
    [(without,)] = cursor.fetchall()
    return bool(without)


def _lost(cursor: Cursor, sinks: Sinks, what: str) -> TableRefused:
    pipeline = sinks.pipeline
    stream = current_stream(cursor, pipeline.name)
    return TableRefused(
        f"Table {pipeline.table} {what}, and deliveries of pipeline {pipeline.name} had filled it: new batches would"
        " not bring these rows back",
        remedy=table_back(
            pipeline, deliveries_in_force(cursor, pipeline.name), state=bool(stream and stream.state)
        ),
    )


def table_back(pipeline: Pipeline, in_force: Sequence[LiveDelivery], *, state: bool) -> str:
    """Name the way back of a table that is gone, empty or lacks columns: what is made anew by hand is empty, and stays so.

    `in_force` are the pipeline's deliveries whose place no later one has taken, in the order of their commits.
    """
    back = f"put table {pipeline.table} back as it was, with its rows, from a backup or under its name"
    batches = [one.delivery_id for one in in_force if one.kind in ("stream", "replay")]
    newest = mode_of(pipeline.sink).only_newest
    if not (pipeline.replayable and batches) or (state and newest):
        return back
    if state:
        return (
            f"{back}; or `sluice recover {pipeline.name} --before {batches[0]} {WHY}` takes all out of both sinks, and the"
            " next run computes it anew; --plan says what it would do"
        )
    last = max(one.delivery_id for one in in_force)
    which = batches[-1] if newest else f"1..{last}"
    return (
        f"{back}; or `sluice replay {pipeline.name} --deliveries {which} --accept-changed` fills it from the inputs again;"
        " --plan says what it would do"
    )


def quarantine_columns(columns: pa.Schema) -> pa.Schema:
    """Return the columns of held rows in the lake: typed, so that they can be judged again, and why.

    A table of an earlier version has no DETAIL, and gains it as it gains any column of the output.
    """
    reasons = pa.field(REASONS, pa.list_(pa.string()))
    texts = [pa.field(name, pa.string()) for name in (RAW, SOURCE_PATH, DETAIL)]
    return pa.schema([*columns, reasons, *texts])


def refuse_unfit(pipeline: Pipeline, columns: pa.Schema) -> None:
    """Raise TableRefused for columns that the sink can't work with, all at once."""
    # readers that make columns of `name=value` folders would overwrite the table's own
    taken = {"stream", "batch"}
    by = pipeline.sink.partition_by
    if by is not None and by.kind != "identity":
        taken.add(f"{by.column}_{by.kind}".lower())
    problems = [
        f"{name} is named as a folder of its objects"
        for name in sorted(columns.names)
        if name.lower() in taken
    ]
    if problems := problems + sink_problems(pipeline.sink, columns):
        raise TableRefused(
            f"Pipeline {pipeline.name} can't deliver its columns: " + "; ".join(problems),
            remedy="change the transform's output or the sink",
        )


def sink_problems(sink: Sink, columns: pa.Schema) -> list[str]:
    """Return what of `columns`, in the common types, doesn't fit the sink; one sentence each."""
    named = dict(mode_of(sink).named_columns)
    if sink.partition_by:
        named = {"partition_by": [sink.partition_by.column], **named}
    problems = [
        f"the sink's {field} names {name!r}, which the transform does not put out"
        for field, names in named.items()
        for name in names
        if name not in columns.names
    ]
    by = sink.partition_by
    if by is not None and by.column in columns.names and not _partitions(by, columns.field(by.column).type):
        problems.append(
            f"{by.kind} of {by.column}, which is {in_words(columns.field(by.column).type)}, makes no partitions"
        )
    key = mode_of(sink).key
    return problems + table_limits(columns, key.columns if key else ())


def _partitions(by: Partition, kind: pa.DataType) -> bool:
    if by.kind == "identity":  # moments and fractions would make a partition of nearly every row
        return kind in (pa.bool_(), pa.int32(), pa.int64(), pa.string())
    return pa.types.is_timestamp(kind) or (pa.types.is_date32(kind) and by.kind != "hour")
