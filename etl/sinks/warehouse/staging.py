"""Stages a task's rows for the commit: in its report where they are few, else in tables of PostgreSQL.

A staging table is unlogged and belongs to one attempt. If PostgreSQL crashes it is emptied, which the
commit notices by its count. The table of packed rows is made by the first task that needs it, and by none once the
attempt is closed.
"""

from __future__ import annotations

import json
import uuid
from contextlib import closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import psycopg2
import psycopg2.extensions
import pyarrow as pa
import pyarrow.compute as pc
from psycopg2 import sql
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from etl.common import steps
from etl.common.database import CONNECTION
from etl.common.record_columns import DETAIL, RAW, REASONS, SOURCE_PATH
from etl.common.statements import Statements
from etl.common.steps import Step
from etl.sinks.columns import RowIdentity
from etl.sinks.warehouse.packed_rows import PackedRows, RowPacker, copy_encoded, encode

STATEMENTS = Statements(__name__)

STAGE_SCHEMA = "sluice_stage"
REPORTED_BYTES = 256 << 10  # of packed rows; more of one task go to PostgreSQL
SENT_BYTES = 1 << 20  # of packed rows that go there at a time
TASK_COLUMN = "_task"
PACKED = pa.schema(
    {"held": pa.bool_(), "rows": pa.int64(), "size": pa.int64(), "packed": pa.binary(), "part": pa.int64()}
)
QUARANTINE_COLUMNS = ("reasons", "source_path", "raw", "row", "detail")
# A task takes as long as its rows, whatever the role's own limits are; a peer that is gone ends it all the same.
NO_TIME_LIMITS = (
    "SET LOCAL statement_timeout = 0; SET LOCAL transaction_timeout = 0;"
    " SET LOCAL idle_in_transaction_session_timeout = 0"
)


@dataclass(frozen=True, kw_only=True)
class StagingTables:
    """Where an attempt's rows wait for the transaction: its tables within STAGE_SCHEMA.

    They are named by its run too: after a restore a number may be given out again.
    """

    dsn: str = field(repr=False)
    delivery_id: int
    run_id: str
    merges: bool = False  # delivered rows are merged by the commit, and not only copied
    restores: bool = False  # changes come back into force, as where an upsert sink is replayed

    @property
    def packed(self) -> str:
        """Return the name of the table of packed rows, which is there only where a task had many."""
        return f"d{self.delivery_id}_{self.run_id[:8]}"

    @property
    def rows(self) -> str | None:
        """Return the name of the table of delivered rows that the commit merges; None where it copies them."""
        return f"{self.packed}_rows" if self.merges else None

    @property
    def log(self) -> str | None:
        """Return the name of the table of changes that come back into force; None where none can."""
        return f"{self.packed}_log" if self.restores else None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.packed, self.rows, self.log) if name is not None]


class StagingWriter:
    """Stages one task's rows; nothing of them counts before the driver has the report that `commit` belongs to."""

    def __init__(self, tables: StagingTables, number: int) -> None:
        self._tables = tables
        self._number = number
        self._packers = {held: RowPacker(held=held) for held in (False, True)}
        self._parts: list[PackedRows] = []
        self._sent = 0  # parts
        self._connection: psycopg2.extensions.connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def pack(self, rows: pa.RecordBatch, *, held: bool) -> None:
        """Pack rows that the commit copies as they are; send what is packed to PostgreSQL once a report can't take it."""
        self._parts += self._packers[held].add(rows)
        steps.reached(Step.ROWS_ENCODED)
        if self._too_large():
            self._send()

    def copy(self, table: str, rows: pa.RecordBatch) -> None:
        """COPY rows into one of the staging tables, as they are."""
        connection = self._open()
        numbers = pa.repeat(pa.scalar(self._number, pa.int64()), rows.num_rows)
        numbered = pa.RecordBatch.from_arrays(
            [*rows.columns, numbers], names=[*rows.schema.names, TASK_COLUMN]
        )
        encoded = encode([numbered])
        steps.reached(Step.ROWS_ENCODED)
        with connection.cursor() as cursor:
            copy_encoded(cursor, sql.Identifier(STAGE_SCHEMA, table), encoded)
        steps.reached(Step.ROWS_STAGED)

    def _open(self) -> psycopg2.extensions.connection:
        """Return the task's connection, within a transaction."""
        if self._connection is None:
            self._connection = psycopg2.connect(self._tables.dsn, **CONNECTION)
        if self._connection.info.transaction_status == TRANSACTION_STATUS_IDLE:
            with self._connection.cursor() as cursor:
                cursor.execute(NO_TIME_LIMITS)
        return self._connection

    def commit(self) -> list[PackedRows]:
        """Commit what went to PostgreSQL; return the packed rows that did not, which the report takes along."""
        for packer in self._packers.values():
            self._parts += packer.flush()
        if self._parts and (self._sent or self._too_large()):
            self._send()
        self._commit()
        return self._parts

    def _commit(self) -> None:
        """Let the driver see what was sent: it reads, and may copy, the rows of a task that goes on."""
        if self._connection is not None:
            self._connection.commit()

    def _too_large(self) -> bool:
        most = SENT_BYTES if self._sent else REPORTED_BYTES
        return sum(len(part.packed) for part in self._parts) > most

    def _send(self) -> None:
        if not self._sent:
            self._make_packed_table()
        parts = [{**vars(part), "part": number} for number, part in enumerate(self._parts, self._sent)]
        self.copy(self._tables.packed, pa.RecordBatch.from_pylist(parts, PACKED))
        self._commit()
        self._parts, self._sent = [], self._sent + len(parts)

    def _make_packed_table(self) -> None:
        """Make the attempt's table of packed rows, unless another task has or the attempt is closed.

        It is one statement that commits by itself: neither another task nor whoever closes the attempt waits for this one.
        Of a closed attempt there is no table, and the COPY that follows fails.
        """
        connection = psycopg2.connect(self._tables.dsn, **CONNECTION)
        connection.autocommit = True
        with closing(connection), connection.cursor() as cursor:
            STATEMENTS.execute(
                cursor,
                "make_packed_table",
                staging=sql.Identifier(self._tables.packed),
                delivery=self._tables.delivery_id,
                run=self._tables.run_id,
            )


def delivered_wire(rows: pa.RecordBatch, identity: RowIdentity) -> pa.RecordBatch:
    """Return the rows as the pipeline's table takes them: with the columns that name their delivery."""
    return _with_constants(rows, identity)


def held_wire(rows: pa.RecordBatch, names: list[str], identity: RowIdentity, pipeline: str) -> pa.RecordBatch:
    """Return the rows as sluice.quarantine takes them: QUARANTINE_COLUMNS, those that name their delivery, the pipeline."""
    return _with_constants(quarantine_wire(rows, names), identity, pipeline)


def _with_constants(rows: pa.RecordBatch, identity: RowIdentity, *more: str) -> pa.RecordBatch:
    values = uuid.UUID(identity.stream_id).bytes, identity.batch_id, identity.delivery_id, *more
    constants = [pa.repeat(pa.scalar(value), rows.num_rows) for value in values]
    names = [*rows.schema.names, *(f"constant {number}" for number in range(len(values)))]
    return pa.RecordBatch.from_arrays([*rows.columns, *constants], names=names)


def quarantine_wire(rows: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return what the rows are in QUARANTINE_COLUMNS. Rows of an object of an earlier version have no DETAIL."""
    made = rows.column(RAW).is_null()  # a malformed record never became a row
    values = pa.array(json_rows(rows.filter(made).select(names)), pa.string())
    detail = rows.column(DETAIL) if DETAIL in rows.schema.names else pa.nulls(rows.num_rows, pa.string())
    return pa.RecordBatch.from_arrays(
        [
            rows.column(REASONS),
            rows.column(SOURCE_PATH),
            _without_nul(rows.column(RAW)),
            pc.replace_with_mask(pa.nulls(rows.num_rows, pa.string()), made, values),
            _without_nul(detail),
        ],
        names=QUARANTINE_COLUMNS,
    )


def _without_nul(texts: pa.Array) -> pa.Array:
    """Return the texts with each NUL, which PostgreSQL's text can't hold, written out."""
    return pc.replace_substring(texts, "\x00", "\\u0000")


def json_rows(rows: pa.RecordBatch) -> list[str]:
    """Write each row as JSON text; what JSON has no type for is written as text.

    A column is written at a time: an encoder that is called for each row takes more than twice as long.
    """
    if not rows.num_rows:
        return []
    members = ", ".join(f"{_as_json(name).replace('%', '%%')}: %s" for name in rows.schema.names)
    row = f"{{{members}}}"
    return [row % values for values in zip(*map(_json_values, rows.columns), strict=True)]


def _json_values(values: pa.Array) -> list[str]:
    """Write each value of a column, which has some, as JSON text."""
    plain = plain_values(values)
    if any(of_kind(values.type) for of_kind in _WITHOUT_COMMA):
        return _as_json(plain)[1:-1].split(", ")  # of a list, its brackets left out
    return ["null" if value is None else _as_json(value) for value in plain]


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
    # Arrow takes some thirty times as long to write a moment of a zone, UTC too.
    near = pc.if_else(far, None, numbers).cast(kind if unit == "D" else pa.timestamp(unit))
    texts = pc.binary_join_element_wise(near.cast(pa.string()), zone, "")
    if not pc.any(far).as_py():
        return texts
    moments = numbers.filter(far).to_numpy().astype(f"datetime64[{unit}]")
    written = [f"{text.replace('T', ' ')}{zone}" for text in np.datetime_as_string(moments).tolist()]
    return pc.replace_with_mask(texts, far.fill_null(False), pa.array(written, pa.string()))


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_as_json = json.JSONEncoder(default=_as_text).encode  # json.dumps would make an encoder for every value
_WITHOUT_COMMA = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean  # none is written with one
