"""Writes Parquet objects to S3 on an executor, one for each partition, however many there are and in which order rows come.

Rows wait in memory until they fill a row group. Where they are of many partitions, they wait on the machine's disk for
more of theirs, so that no object is made of a few rows because others came between.

An object exists on S3 only after its writer was closed; until then it is an unfinished multipart upload,
which the sweeper knows how to find.
"""

from __future__ import annotations

import pickle
import tempfile
import urllib.parse
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from pyarrow import fs

from etl.common import steps
from etl.common.errors import raise_first
from etl.common.paths import temporary_folder
from etl.common.steps import Step

if TYPE_CHECKING:
    import pyarrow.parquet as pq

OBJECT_BYTES = 120_000_000  # roll over here: the last row group brings a file to about 128 MB at most
ROW_GROUP_BYTES = 32_000_000  # of Arrow memory, before encoding
# A task whose rows come in the order of their partitions closes the writer that it used longest ago.
OPEN_WRITERS = 16
COMPLETED_AT_ONCE = 8  # objects of a task; of each that is smaller than a part of an upload, all is in memory
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


class _Spill:
    """Rows that wait for others of their partition, in a temporary file of this machine, where Spark has its own."""

    def __init__(self, schema: pa.Schema) -> None:
        self._file = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115 - `close` closes it
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_file(self._file, schema, options=options)
        self._numbers: dict[Any, list[int]] = {}  # of the batches of a partition, in the file
        self._written = 0

    def add(self, value: Any, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows)
        self._numbers.setdefault(value, []).append(self._written)
        self._written += 1

    def take(self) -> Iterator[tuple[Any, Iterator[pa.RecordBatch]]]:
        """Yield each partition's value with its rows, which are read as they are asked for; nothing can be added then."""
        self._writer.close()
        self._file.seek(0)
        reader = pa.ipc.open_file(self._file)
        for value, numbers in self._numbers.items():
            yield value, (reader.get_batch(number) for number in numbers)

    def close(self) -> None:
        self._file.close()


class Completions:
    """Completes a task's objects on S3 side by side, within a `with` block that ends once all are there, or raises.

    A small object is sent as it is completed, so that each of many would wait for the one before it.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(COMPLETED_AT_ONCE)
        self._begun = deque[Future[None]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=error is not None)
        raise_first(error, self._begun)

    def begin(self, sink: pa.NativeFile) -> None:
        """Begin to complete an object; wait for the one that was begun first where as many are under way as may be."""
        if len(self._begun) == COMPLETED_AT_ONCE:
            self._begun.popleft().result()
        self._begun.append(self._pool.submit(sink.close))


class ObjectWriter:
    """Writes rows to one object a partition; `close` returns the objects, which are on S3 once `completions` has ended.

    A partition has more than one only where one would be larger than OBJECT_BYTES, or each but one has half a row group.
    """

    def __init__(
        self, spec: FileSpec, store: ObjectStore, delivery_id: int, partition: int, completions: Completions
    ) -> None:
        self._spec = spec
        self._store = store
        self._completions = completions
        self._name = f"{delivery_id}-{partition:05d}"
        self._s3: fs.S3FileSystem | None = None
        self._open: OrderedDict[Any, _Open] = OrderedDict()
        self._done: list[StagedFile] = []
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._spill: _Spill | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows with the table's columns, in any order; write or spill what waits once it could fill a row group."""
        columns = [rows.column(name) for name in self._spec.schema.names]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes < ROW_GROUP_BYTES:
            return
        for value, part in self._parted():
            if 2 * part.nbytes >= ROW_GROUP_BYTES:
                self._write(value, [part])
            else:
                self._spill = self._spill or _Spill(self._spec.schema)
                self._spill.add(value, part)

    def close(self) -> list[StagedFile]:
        """Write what waits, and begin to complete every object; return all that were written."""
        rest = dict(self._parted())
        spilled = dict(self._spill.take()) if self._spill is not None else {}
        # What is open first: another would close it.
        for value in dict.fromkeys([*self._open, *spilled, *rest]):
            self._write_all(value, chain(spilled.get(value, ()), [rest[value]] if value in rest else ()))
        return self._done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up what `close` has not finished.

        pyarrow may still complete it: no metadata refers to it, and the sweeper removes it.
        """
        self._waiting.clear()
        self._open.clear()
        if self._spill is not None:
            with suppress(OSError):  # of a full disk, which ended the task
                self._spill.close()

    def _parted(self) -> Iterator[tuple[Any, pa.RecordBatch]]:
        """Take all rows that wait in memory; yield them by partition."""
        if self._waiting:
            rows = pa.concat_batches(self._waiting) if len(self._waiting) > 1 else self._waiting[0]
            self._waiting, self._waiting_bytes = [], 0
            yield from split(rows, self._spec.partitioning)

    def _write_all(self, value: Any, parts: Iterator[pa.RecordBatch]) -> None:
        """Write the rows of a partition in full row groups, and finish its object."""
        group, group_bytes = list[pa.RecordBatch](), 0
        for part in parts:
            group.append(part)
            group_bytes += part.nbytes
            if group_bytes >= ROW_GROUP_BYTES:
                self._write(value, group)
                group, group_bytes = [], 0
        if group:
            self._write(value, group)
        if value in self._open:
            self._finish(value)

    def _write(self, value: Any, group: list[pa.RecordBatch]) -> None:
        rows = pa.Table.from_batches(group)
        row_bytes = max(1, rows.nbytes // rows.num_rows)
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
        import pyarrow.parquet as pq

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
        self._completions.begin(done.sink)
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
    """Yield (partition value, its rows in their order) for each partition that `rows` has."""
    if rows.num_rows == 0:
        return
    if by is None:
        yield None, rows
        return
    values = partition_values(rows.column(by.column), by.transform).dictionary_encode("encode")
    if len(values.dictionary) == 1:
        yield values.dictionary[0].as_py(), rows
        return
    numbers = values.indices.to_numpy()
    order = np.argsort(numbers, kind="stable")
    edges = np.flatnonzero(np.diff(numbers[order], prepend=-1, append=-1)).tolist()
    ordered = rows.take(pa.array(order))
    for value, (start, end) in zip(values.dictionary.to_pylist(), pairwise(edges), strict=True):
        yield value, ordered.slice(start, end - start)


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
