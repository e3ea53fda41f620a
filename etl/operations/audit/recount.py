"""Reads every row of both sinks again, and counts and sums them by the delivery that each row names.

It trusts nothing that the ledger says. Memory is bounded by a few batches of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg2 import sql

from etl.common.database import Cursor
from etl.common.outcome import in_short
from etl.common.statements import Statements
from etl.sinks.checksum import MODULUS, checksum
from etl.sinks.columns import IDENTITY, SYSTEM_COLUMNS
from etl.sinks.lake.lake import Lake
from etl.sinks.warehouse.copy_out import Take, copy_rows, exact

STATEMENTS = Statements(__name__)

T = TypeVar("T")

READERS = 4  # Parquet files read at a time
BATCH_ROWS = 65_536


BEYOND = "_beyond"  # true in a row with a value that only PostgreSQL can hold


class Identity(NamedTuple):
    """The delivery that a row names as its own."""

    delivery_id: int | None
    stream_id: str | None
    batch_id: int | None


@dataclass(kw_only=True)
class Tally:
    """Rows that were counted, and the sum of their hashes."""

    rows: int = 0
    checksum: int = 0

    def add(self, rows: int, summed: int) -> None:
        self.rows += rows
        self.checksum = (self.checksum + summed) % MODULUS


@dataclass(kw_only=True)
class Recount:
    """One sink's tallies by delivery."""

    names: list[str]  # the columns that are summed
    tallies: dict[Identity, Tally] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(tally.rows for tally in self.tallies.values())

    def add(self, batch: pa.RecordBatch) -> None:
        for identity, rows in by_identity(batch):
            self.tallies.setdefault(identity, Tally()).add(rows.num_rows, checksum(rows, self.names))

    def merge(self, other: Recount) -> None:
        for identity, tally in other.tallies.items():
            self.tallies.setdefault(identity, Tally()).add(tally.rows, tally.checksum)


def by_identity(batch: pa.RecordBatch) -> Iterator[tuple[Identity, pa.RecordBatch]]:
    """Split the batch by its three identity columns."""
    if batch.num_rows == 0:
        return
    keys = [batch.column(name) for name in SYSTEM_COLUMNS]
    if any(len(pc.unique(key)) > 1 for key in keys):
        batch = batch.take(pc.sort_indices(batch, [(name, "ascending") for name in SYSTEM_COLUMNS]))
        keys = [batch.column(name) for name in SYSTEM_COLUMNS]
    new = np.zeros(batch.num_rows - 1, bool)
    for key in keys:
        codes = key.dictionary_encode(null_encoding="encode").indices.to_numpy()
        new |= codes[1:] != codes[:-1]
    edges = [0, *(np.flatnonzero(new) + 1).tolist(), batch.num_rows]
    for start, end in pairwise(edges):
        stream, number, delivery = (key[start].as_py() for key in keys)
        identity = Identity(delivery_id=delivery, stream_id=stream, batch_id=number)
        yield identity, batch.slice(start, end - start)


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A Parquet file that could not be read to its end."""

    uri: str
    why: str


def recount_lake(
    lake: Lake, uris: Iterable[str], columns: pa.Schema, take: Take | None = None
) -> tuple[Recount, list[Unreadable]]:
    """Count and sum every row of the Parquet files at `uris`; `take` is given each batch, by any thread."""
    total = Recount(names=columns.names)

    def one(uri: str) -> Recount:
        recount = Recount(names=columns.names)
        for batch in parquet_rows(lake, uri, columns):
            recount.add(batch)
            if take is not None:
                take(batch)
        return recount

    return total, read_all(uris, one, total.merge)


def read_all(uris: Iterable[str], read: Callable[[str], T], merge: Callable[[T], None]) -> list[Unreadable]:
    """Read several files at once and merge one after the other; return those that could not be read."""

    def one(uri: str) -> T | Unreadable:
        try:
            return read(uri)
        except (OSError, pa.ArrowException) as error:
            return Unreadable(uri=uri, why=in_short(error))

    broken = []
    with ThreadPoolExecutor(READERS) as pool:
        for result in pool.map(one, uris):
            if isinstance(result, Unreadable):
                broken.append(result)
            else:
                merge(result)
    return broken


def parquet_rows(lake: Lake, uri: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file: `columns` and the identity; a column that the file lacks is null."""
    wanted = pa.schema([*columns, *IDENTITY])
    with lake.open(uri) as source:
        file = pq.ParquetFile(source, pre_buffer=True)
        present = [name for name in wanted.names if name in file.schema_arrow.names]
        for group in range(file.num_row_groups):  # one by one: pre_buffer holds all that is asked for
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=present):
                yield fill_and_cast(batch, wanted)


def fill_and_cast(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return `batch` with exactly the columns `wanted`; one that it lacks is null."""

    def column(name: str, kind: pa.DataType) -> pa.Array:
        if name not in batch.schema.names:
            return pa.nulls(batch.num_rows, kind)
        values = batch.column(name)
        return values if values.type == kind else values.cast(kind)

    return pa.RecordBatch.from_arrays([column(f.name, f.type) for f in wanted], names=wanted.names)


def _beyond(field: pa.Field) -> sql.Composed | None:
    """Return the condition that a value of the column has no place in its Arrow type; None where each has one."""
    column = sql.Identifier(field.name)
    if pa.types.is_decimal(field.type):
        return STATEMENTS.compose("beyond_decimal", column=column)
    if pa.types.is_date(field.type):
        return STATEMENTS.compose("beyond_date", column=column)
    if pa.types.is_timestamp(field.type):
        return STATEMENTS.compose("beyond_timestamp", column=column)
    return None


def table_rows(cursor: Cursor, target: sql.Identifier, columns: pa.Schema, take: Take) -> None:
    """Pass every row of the table on: `columns`, whether a value is beyond Arrow, and the identity."""
    fields = [*columns, *IDENTITY]
    beyond = [sql.SQL("coalesce({}, false)").format(one) for one in map(_beyond, columns) if one is not None]
    flag = sql.SQL("nullif({}, false)").format(sql.SQL(" OR ").join(beyond) if beyond else sql.SQL("false"))
    wanted = pa.schema([*fields, pa.field(BEYOND, pa.bool_())])
    command = STATEMENTS.compose("copy_table", columns=exact(fields) + sql.SQL(", ") + flag, target=target)
    copy_rows(cursor, command, wanted, take)
