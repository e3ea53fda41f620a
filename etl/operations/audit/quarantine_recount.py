"""Reads the quarantine again: sluice.quarantine, and the lake's table both typed and as the same texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg2 import sql

from etl.common.database import Cursor
from etl.common.record_columns import is_own
from etl.common.statements import Statements
from etl.operations.audit.recount import BATCH_ROWS, Recount, Unreadable, fill_and_cast, read_all
from etl.sinks.columns import IDENTITY, SYSTEM_COLUMNS
from etl.sinks.lake.lake import Lake
from etl.sinks.warehouse.copy_out import copy_rows
from etl.sinks.warehouse.staging import QUARANTINE_COLUMNS, quarantine_wire

STATEMENTS = Statements(__name__)

TEXTS = [*QUARANTINE_COLUMNS]
_SEPARATOR = "\x1f"  # between the reasons of a row


def recount_held_table(cursor: Cursor, pipeline: str) -> Recount:
    """Count and sum the pipeline's rows of sluice.quarantine."""
    recount = Recount(names=TEXTS)
    reasons = sql.SQL("array_to_string(reasons, {})").format(sql.Literal(_SEPARATOR))
    others = [sql.Identifier(name) for name in (*TEXTS[1:], "stream_id", "batch_id", "delivery_id")]
    command = STATEMENTS.compose(
        "copy_quarantine", columns=sql.SQL(", ").join([reasons, *others]), pipeline=sql.Literal(pipeline)
    )
    wanted = pa.schema([*(pa.field(name, pa.string()) for name in TEXTS), *IDENTITY])
    copy_rows(cursor, command, wanted, recount.add)
    return recount


def recount_held_lake(
    lake: Lake, uris: Iterable[str], columns: pa.Schema
) -> tuple[Recount, Recount, list[Unreadable]]:
    """Count and sum the lake's held rows twice: their typed columns, and the texts that PostgreSQL has."""
    typed, wire = Recount(names=columns.names), Recount(names=TEXTS)
    wanted = pa.schema([*columns, *IDENTITY])

    def one(uri: str) -> tuple[Recount, Recount]:
        ours, texts = Recount(names=columns.names), Recount(names=TEXTS)
        for batch in _rows(lake, uri):
            ours.add(fill_and_cast(batch, wanted))
            texts.add(_texts(batch))
        return ours, texts

    def merge(counted: tuple[Recount, Recount]) -> None:
        typed.merge(counted[0])
        wire.merge(counted[1])

    return typed, wire, read_all(uris, one, merge)


def _rows(lake: Lake, uri: str) -> Iterator[pa.RecordBatch]:
    with lake.open(uri) as source:
        file = pq.ParquetFile(source, pre_buffer=True)
        for group in range(file.num_row_groups):
            yield from file.iter_batches(BATCH_ROWS, row_groups=[group])


def _texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch in the form that staging gave sluice.quarantine: the columns it had then, in their order."""
    wire = quarantine_wire(batch, [name for name in batch.schema.names if not is_own(name)])
    reasons = pc.binary_join(wire.column("reasons").cast(pa.list_(pa.string())), _SEPARATOR)
    arrays = [reasons, *(wire.column(name) for name in TEXTS[1:]), *(batch.column(n) for n in SYSTEM_COLUMNS)]
    return pa.RecordBatch.from_arrays(arrays, names=[*TEXTS, *SYSTEM_COLUMNS])
