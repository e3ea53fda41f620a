"""Writes PostgreSQL's staging tables on an executor: binary COPY, one transaction per task.

A staging table is unlogged and belongs to one attempt. If PostgreSQL crashes it is emptied, which the
commit notices by its count.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import psycopg2
import psycopg2.extensions
import pyarrow as pa
import pyarrow.compute as pc
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg2 import sql

from etl.common import steps
from etl.common.database import CONNECTION
from etl.common.record_columns import DETAIL, RAW, REASONS, SOURCE_PATH
from etl.common.steps import Step

STAGE_SCHEMA = "sluice_stage"
COPY_READ_BYTES = 1 << 20
HELD_IN_MEMORY_BYTES = 8 << 20
TASK_COLUMN = "_task"
# A task takes as long as its rows, whatever the role's own limits are; a peer that is gone ends it all the same.
NO_TIME_LIMITS = (
    "SET LOCAL statement_timeout = 0; SET LOCAL transaction_timeout = 0;"
    " SET LOCAL idle_in_transaction_session_timeout = 0"
)


@dataclass(frozen=True, kw_only=True)
class StagingTables:
    """Where an attempt's rows wait for the transaction."""

    dsn: str = field(repr=False)
    data: str  # table names within STAGE_SCHEMA
    quarantine: str
    log: str | None = None  # of changes that come back into force, where an upsert sink is replayed

    @property
    def names(self) -> list[str]:
        return [name for name in (self.data, self.quarantine, self.log) if name is not None]


class StagingWriter:
    """One task's COPY into both staging tables; nothing of it counts before `commit`."""

    def __init__(self, tables: StagingTables, number: int) -> None:
        self._tables = tables
        self._number = number
        self._held: BinaryIO = tempfile.SpooledTemporaryFile(HELD_IN_MEMORY_BYTES)  # type: ignore[assignment] # noqa: SIM115
        self._held_encoder: ArrowToPostgresBinaryEncoder | None = None
        self._connection: psycopg2.extensions.connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()
        if self._connection is not None:
            self._connection.close()

    def copy(self, batches: Iterator[pa.RecordBatch]) -> None:
        """COPY all of `batches`, pulling them one by one; no connection is made when there is no row."""
        encoded = _encode(batches, self._number)
        first = next(encoded, None)
        if first is None:
            return
        feed = _Feed(first, encoded)
        try:
            self._copy(self._tables.data, feed)
        except psycopg2.Error:
            if feed.error is not None:  # psycopg2 would tell of a cancelled query
                raise feed.error from None
            raise

    def hold(self, rows: pa.RecordBatch, names: list[str]) -> None:
        """Keep quarantined rows (in memory, then on disk) until the COPY under way is over."""
        wire = quarantine_wire(rows, names, self._number)
        if self._held_encoder is None:
            self._held_encoder = ArrowToPostgresBinaryEncoder(wire.schema)
            self._held.write(self._held_encoder.write_header())
        self._held.write(self._held_encoder.write_batch(wire))

    def copy_quarantine(self) -> None:
        if self._held_encoder is not None:
            self._held.write(self._held_encoder.finish())
            self._held.seek(0)
            self._copy(self._tables.quarantine, self._held)

    def commit(self) -> None:
        if self._connection is not None:
            self._connection.commit()

    def _copy(self, table: str, source: Any) -> None:
        if self._connection is None:
            self._connection = psycopg2.connect(self._tables.dsn, **CONNECTION)
            with self._connection.cursor() as cursor:
                cursor.execute(NO_TIME_LIMITS)
        name = sql.Identifier(STAGE_SCHEMA, table)
        command = sql.SQL("COPY {} FROM STDIN WITH (FORMAT binary)").format(name)
        with self._connection.cursor() as cursor:
            cursor.copy_expert(command, source, size=COPY_READ_BYTES)


def _encode(batches: Iterator[pa.RecordBatch], number: int) -> Iterator[bytes]:
    encoder = None
    for batch in batches:
        columns = [*batch.columns, pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows)]
        numbered = pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, TASK_COLUMN])
        if encoder is None:
            encoder = ArrowToPostgresBinaryEncoder(numbered.schema)
            yield encoder.write_header()
        yield encoder.write_batch(numbered)
        steps.reached(Step.ROWS_COPIED)
    if encoder is not None:
        yield encoder.finish()


class _Feed:
    """The file that psycopg2's COPY reads, made of chunks as they come."""

    def __init__(self, first: bytes, rest: Iterator[bytes]) -> None:
        self._rest = rest
        self._chunk = memoryview(first)
        self.error: Exception | None = None  # what ended the rows before their end

    def read(self, size: int = -1) -> bytes:
        while not self._chunk:
            try:
                chunk = next(self._rest, None)
            except Exception as error:
                self.error = error
                raise
            if chunk is None:
                return b""
            self._chunk = memoryview(chunk)
        taken = self._chunk[:size] if size >= 0 else self._chunk
        self._chunk = self._chunk[len(taken) :]
        return bytes(taken)


def quarantine_wire(rows: pa.RecordBatch, names: list[str], number: int) -> pa.RecordBatch:
    """Return the rows as the quarantine staging table takes them.

    These are reasons, source_path, raw, row, detail and _task. Rows of an object of an earlier version have no DETAIL.
    """
    malformed = rows.column(RAW).is_valid().to_pylist()
    values = json_rows(rows.select(names))
    detail = rows.column(DETAIL) if DETAIL in rows.schema.names else pa.nulls(rows.num_rows, pa.string())
    return pa.RecordBatch.from_arrays(
        [
            rows.column(REASONS),
            rows.column(SOURCE_PATH),
            _without_nul(rows.column(RAW)),
            pa.array([None if bad else row for bad, row in zip(malformed, values, strict=True)], pa.string()),
            _without_nul(detail),
            pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows),
        ],
        names=["reasons", "source_path", "raw", "row", "detail", TASK_COLUMN],
    )


def _without_nul(texts: pa.Array) -> pa.Array:
    """Return the texts with each NUL, which PostgreSQL's text can't hold, written out."""
    return pa.array(
        [None if text is None else text.replace("\x00", "\\u0000") for text in texts.to_pylist()], pa.string()
    )


def json_rows(rows: pa.RecordBatch) -> list[str]:
    """Write each row as JSON text; what JSON has no type for is written as text."""
    columns = [plain_values(column) for column in rows.columns]
    encode = json.JSONEncoder(default=_as_text).encode  # json.dumps would make one for every row
    return [encode(dict(zip(rows.schema.names, row, strict=True))) for row in zip(*columns, strict=True)]


def plain_values(values: pa.Array) -> list[Any]:
    """Return the values as Python's, moments as ISO text, because Python's own end at the year 9999."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        values = _moments_as_text(values)
    plain: list[Any] = values.to_pylist()
    return plain


def _moments_as_text(values: pa.Array) -> pa.Array:
    """Write moments as ISO text; those whose year has more than 16 bits by NumPy, for Arrow writes other years of them."""
    kind = values.type
    unit: Any = "D" if pa.types.is_date(kind) else kind.unit
    whole, zone = pa.int32() if unit == "D" else pa.int64(), "Z" if unit != "D" and kind.tz else ""
    first, end = (np.datetime64(f"{year}-01-01", unit).astype("int64").item() for year in (-32767, 32768))
    numbers = values.view(whole)
    far = pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end))
    texts = pc.if_else(far, None, values).cast(pa.string())
    if not pc.any(far).as_py():
        return texts
    moments = numbers.filter(far).to_numpy().astype(f"datetime64[{unit}]")
    written = [f"{text.replace('T', ' ')}{zone}" for text in np.datetime_as_string(moments).tolist()]
    return pc.replace_with_mask(texts, far.fill_null(False), pa.array(written, pa.string()))


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
