"""Writes Parquet objects to S3 on an executor: rows wait until they fill a row group of their partition.

An object exists on S3 only after its writer was closed; until then it is an unfinished multipart upload,
which the sweeper knows how to find.
"""

from __future__ import annotations

import pickle
import urllib.parse
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from etl.common import steps
from etl.common.steps import Step

OBJECT_BYTES = 120_000_000  # roll over here: the last row group brings a file to about 128 MB at most
ROW_GROUP_BYTES = 32_000_000  # of Arrow memory, before encoding
WAITING_BYTES = 64_000_000  # of all partitions; beyond it the largest is written, however small its row group
OPEN_WRITERS = 16  # a task that writes to more partitions closes the one it used longest ago
UNITS = {"hour": "h", "day": "D", "month": "M"}  # numpy's names


@dataclass(frozen=True, kw_only=True)
class ObjectStore:
    """Where S3 is; who may use it is found by the standard AWS chain."""

    endpoint: str | None
    region: str

    def open(self, *, connect_seconds: float = 5, request_seconds: float = 30) -> fs.S3FileSystem:
        """Open a patient client: by the library's own default, an endpoint that takes 4 s an answer fails."""
        return fs.S3FileSystem(
            endpoint_override=self.endpoint,
            region=self.region,
            force_virtual_addressing=False,
            connect_timeout=connect_seconds,
            request_timeout=request_seconds,
            allow_delayed_open=True,
        )


@dataclass(frozen=True, kw_only=True)
class Partitioning:
    """How rows are spread over partitions: `transform` of `column`, named `field` in paths."""

    column: str
    transform: str  # identity, hour, day or month
    field: str


@dataclass(frozen=True, kw_only=True)
class FileSpec:
    """What the objects of one table look like and where they go."""

    prefix: str  # s3://bucket/…/data
    folder: str  # stream=…/batch=…
    schema: pa.Schema  # with Iceberg's field ids in the fields' metadata
    partitioning: Partitioning | None


@dataclass(frozen=True, kw_only=True)
class StagedFile:
    """A finished object and all that Iceberg must know of it, without another look at S3."""

    path: str  # s3:// URI
    rows: int
    size: int  # bytes
    partition: Any  # the partition's value in Iceberg's terms; None: null, or no partitioning
    footer: bytes  # pickled pyarrow.parquet.FileMetaData


@dataclass(kw_only=True)
class _Open:
    path: str
    sink: pa.NativeFile
    writer: pq.ParquetWriter
    footers: list[pq.FileMetaData]
    rows: int = 0


class ObjectWriter:
    """Writes rows to one object a partition; finished objects come back from `close`."""

    def __init__(self, spec: FileSpec, store: ObjectStore, delivery_id: int, partition: int) -> None:
        self._spec = spec
        self._store = store
        self._name = f"{delivery_id}-{partition:05d}"
        self._s3: fs.S3FileSystem | None = None
        self._open: OrderedDict[Any, _Open] = OrderedDict()
        self._done: list[StagedFile] = []
        self._waiting: dict[Any, list[pa.RecordBatch]] = {}
        self._waiting_bytes: Counter[Any] = Counter()

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows with the table's columns, in any order; write what fills a row group of its partition.

        Where too much waits in all partitions together, the largest is written as well.
        """
        for value, part in split(rows, self._spec.partitioning):
            columns = [part.column(name) for name in self._spec.schema.names]
            batch = pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)
            self._waiting.setdefault(value, []).append(batch)
            self._waiting_bytes[value] += batch.nbytes
            if self._waiting_bytes[value] >= ROW_GROUP_BYTES:
                self._write_waiting(value)
        while self._waiting_bytes.total() >= WAITING_BYTES:
            self._write_waiting(max(self._waiting_bytes, key=lambda value: self._waiting_bytes[value]))

    def close(self) -> list[StagedFile]:
        """Finish every object; return all that were written."""
        for value in list(self._waiting):
            self._write_waiting(value)
            if value in self._open:
                self._finish(value)
        while self._open:
            self._finish(next(iter(self._open)))
        return self._done

    def abort(self) -> None:
        """Give up what is open.

        pyarrow may still complete it: no metadata refers to it, and the sweeper removes it.
        """
        self._waiting.clear()
        self._waiting_bytes.clear()
        self._open.clear()

    def _write_waiting(self, value: Any) -> None:
        rows = pa.Table.from_batches(self._waiting.pop(value))
        row_bytes = max(1, self._waiting_bytes.pop(value) // rows.num_rows)
        target = self._target(value)
        target.writer.write_table(rows, row_group_size=max(1024, 2 * ROW_GROUP_BYTES // row_bytes))
        target.rows += rows.num_rows
        if target.sink.tell() >= OBJECT_BYTES:
            self._finish(value)

    def _target(self, value: Any) -> _Open:
        if value in self._open:
            self._open.move_to_end(value)
            return self._open[value]
        if len(self._open) >= OPEN_WRITERS:
            self._finish(next(iter(self._open)))
        self._s3 = self._s3 or self._store.open()
        folder = path_of(self._spec, value)
        path = f"{folder}/{self._name}-{uuid.uuid4().hex[:8]}.parquet"
        sink = self._s3.open_output_stream(path.removeprefix("s3://"))
        footers: list[pq.FileMetaData] = []
        writer = pq.ParquetWriter(
            sink, self._spec.schema, compression="zstd", compression_level=1, metadata_collector=footers
        )
        steps.reached(Step.OBJECT_OPENED)
        self._open[value] = _Open(path=path, sink=sink, writer=writer, footers=footers)
        return self._open[value]

    def _finish(self, value: Any) -> None:
        done = self._open.pop(value)
        done.writer.close()
        size = done.sink.tell()
        done.sink.close()
        self._done.append(
            StagedFile(
                path=done.path,
                rows=done.rows,
                size=size,
                partition=value,
                footer=pickle.dumps(done.footers[0]),
            )
        )


def path_of(spec: FileSpec, value: Any) -> str:
    """Return the folder of the objects with the partition value `value`."""
    if spec.partitioning is None:
        return f"{spec.prefix}/{spec.folder}"
    by = spec.partitioning
    name, text = (urllib.parse.quote(part, safe="") for part in (by.field, readable(value, by.transform)))
    return f"{spec.prefix}/{name}={text}/{spec.folder}"


def readable(value: Any, transform: str) -> str:
    """Write a partition value as people do: 2013-01-01 for a day."""
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"  # what readers of such folders take for null
    unit = UNITS.get(transform)
    return str(value) if unit is None else str(np.array(value).astype(f"datetime64[{unit}]"))


def split(rows: pa.RecordBatch, by: Partitioning | None) -> Iterator[tuple[Any, pa.RecordBatch]]:
    """Yield (partition value, its rows) for each partition that `rows` has."""
    if rows.num_rows == 0:
        return
    if by is None:
        yield None, rows
        return
    keys = partition_values(rows.column(by.column), by.transform)
    partitions = pc.unique(keys).to_pylist()
    for value in partitions:
        if len(partitions) == 1:
            yield value, rows
        else:
            yield (
                value,
                rows.filter(pc.is_null(keys) if value is None else pc.equal(keys, value).fill_null(False)),
            )


def partition_values(values: pa.Array, transform: str) -> pa.Array:
    """Return Iceberg's partition values: hours, days or months since 1970, or the values themselves."""
    if transform == "identity":
        return values
    nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    if pa.types.is_date32(values.type):
        days = values.view(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype("datetime64[D]")
        moments = days.astype("datetime64[us]")
    else:
        moments = values.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view("datetime64[us]")
    numbers = moments.astype(f"datetime64[{UNITS[transform]}]").astype(np.int64).astype(np.int32)
    return pa.array(numbers, pa.int32(), mask=nulls)
