"""Reads rows of PostgreSQL by COPY, exactly, in batches of Arrow."""

from __future__ import annotations

import binascii
import io
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from psycopg2 import sql

from etl.common.database import Cursor, copy_out
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)

Take = Callable[[pa.RecordBatch], None]


CHUNK_BYTES = 8 << 20  # of COPY's text, parsed at a time


def exact(fields: Iterable[pa.Field]) -> sql.Composed:
    """Return columns of a query, each value in the form that `copy_rows` reads without a loss."""
    return sql.SQL(", ").join(map(_exact, fields))


def _exact(field: pa.Field) -> sql.Composed:
    column = sql.Identifier(field.name)
    if pa.types.is_binary(field.type):
        return STATEMENTS.compose("exact_binary", column=column)
    if pa.types.is_decimal(field.type):
        return STATEMENTS.compose("exact_decimal", column=column)
    if pa.types.is_date(field.type):
        return STATEMENTS.compose("exact_date", column=column)
    if pa.types.is_timestamp(field.type):
        return STATEMENTS.compose("exact_timestamp", column=column)
    return STATEMENTS.compose("exact_plain", column=column)


def copy_rows(cursor: Cursor, command: sql.Composed, wanted: pa.Schema, take: Take) -> None:
    """Run a COPY … TO STDOUT of exact CSV and pass its rows on as batches of `wanted`."""
    rows = _CopiedRows(wanted, take)
    copy_out(cursor, command, rows)
    rows.flush()


class _CopiedRows:
    """The file that COPY writes to. libpq passes whole rows, one a call, so a chunk ends where a row does,
    whatever the values hold; a row that is larger than a chunk is a chunk of its own."""

    def __init__(self, wanted: pa.Schema, take: Take) -> None:
        self._wanted = wanted
        self._take = take
        self._chunk = io.BytesIO()
        self._options = csv.ConvertOptions(
            column_types={field.name: _csv_type(field.type) for field in wanted},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        )

    def write(self, row: bytes) -> int:
        written = self._chunk.write(row)
        if self._chunk.tell() >= CHUNK_BYTES:
            self.flush()
        return written

    def flush(self) -> None:
        size = self._chunk.tell()
        if size == 0:
            return
        table = csv.read_csv(
            pa.BufferReader(self._chunk.getvalue()),
            read_options=csv.ReadOptions(
                column_names=self._wanted.names, block_size=size + 1, use_threads=False
            ),
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=self._options,
        )
        self._chunk = io.BytesIO()
        for batch in table.to_batches():
            columns = [_typed(batch.column(f.name), f.type) for f in self._wanted]
            self._take(pa.RecordBatch.from_arrays(columns, names=self._wanted.names))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that the CSV reader makes of the exact form of a `kind`."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.string() if pa.types.is_binary(kind) else kind


def _typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return values.view(kind)
    return _unhex(values) if pa.types.is_binary(kind) else values


def _unhex(values: pa.Array) -> pa.Array:
    """Turn hexadecimal text into bytes, all values at once."""
    if values.offset:
        values = pa.concat_arrays([values])
    validity, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(values) + 1]
    text = b"" if data is None else data.to_pybytes()[ends[0] : ends[-1]]
    halved = ((ends - ends[0]) // 2).astype(np.int32)
    buffers = [validity, pa.py_buffer(halved.tobytes()), pa.py_buffer(binascii.unhexlify(text))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
