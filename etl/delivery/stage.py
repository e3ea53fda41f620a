"""Writes one task's rows to Parquet on S3 and stages them for PostgreSQL, in one pass on an executor.

The few malformed records that a pass brings along are staged likewise, by the driver.

Nothing that a task writes can be seen by a reader: its objects are in no Iceberg metadata, its rows in its
report, or in a staging table of the attempt, under the number of the task. The transaction commits only the rows of
tasks whose report the driver received, so a task that ran twice counts once. This module imports neither
pyspark nor pyiceberg, whose import costs each cold worker a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from etl.common import steps
from etl.common.record_columns import DETAIL, MALFORMED_REASON, ORIGIN, RAW, REASONS, SOURCE_PATH, WHY
from etl.common.steps import Step
from etl.delivery.row_filter import (
    DETAILS_REPORTED,
    RowFilter,
    TaskReport,
    cast_to,
    most_frequent,
    split_rows,
)
from etl.quality.verdict import flag_column
from etl.sinks.checksum import MODULUS, checksum
from etl.sinks.columns import IDENTITY, RowIdentity
from etl.sinks.keys import without_negative_zeros
from etl.sinks.lake.parquet_writer import Completions, FileSpec, ObjectStore, ObjectWriter
from etl.sinks.limits import repaired
from etl.sinks.warehouse.packed_rows import PART_BYTES
from etl.sinks.warehouse.staging import StagingTables, StagingWriter, delivered_wire, held_wire

StagedChanges = tuple[int, int]  # the number of a winning task, and how many rows it staged
DRIVER = -1  # the number of what the driver stages itself; Spark's tasks count from 0
PIECE_BYTES = 8 << 20  # of rows that are worked on at a time
UNREADABLE_RAW = "unreadable file: "  # begins what is held in the place of a record, before the reason


@dataclass(frozen=True, kw_only=True)
class StageTask:
    """All that a task must know to stage its rows; pickled to the executors."""

    pipeline: str
    delivery_id: int
    stream_id: str
    batch_id: int
    row_filter: RowFilter
    data: FileSpec
    quarantine: FileSpec
    store: ObjectStore
    tables: StagingTables
    on_step: steps.Listener | None = None
    tried_before: bool = False  # it is not the first attempt at its batch
    files: Mapping[int, str] = field(default_factory=dict)  # of the batch, by ORIGIN

    @property
    def identity(self) -> RowIdentity:
        """Return what each row of the delivery says of itself, in both sinks."""
        return RowIdentity(stream_id=self.stream_id, batch_id=self.batch_id, delivery_id=self.delivery_id)

    def deliver(self, staging: StagingWriter, rows: pa.RecordBatch) -> None:
        """Stage rows for the pipeline's table: as a table where the commit merges them, else as it copies them."""
        if self.tables.rows is not None:
            staging.copy(self.tables.rows, rows)
        else:
            staging.pack(delivered_wire(rows, self.identity), held=False)

    def hold(self, staging: StagingWriter, rows: pa.RecordBatch, names: list[str]) -> None:
        """Stage rows for the quarantine, of which `names` are the transform's columns."""
        staging.pack(held_wire(rows, names, self.identity, self.pipeline), held=True)


def stage(task: StageTask, batches: Iterator[pa.RecordBatch], *, partition: int, number: int) -> TaskReport:
    """Write every row of `batches` to exactly one of the two tables, on S3 and in staging, or raise.

    `number` tells this run of the partition from any other. Memory is bounded by a few batches and the
    open objects' buffers, whatever the partition's size.
    """
    steps.listen(task.on_step)
    return _staged(task, batches, partition=partition, number=number)


def stage_malformed(task: StageTask, records: Sequence[Mapping[str, str]]) -> TaskReport:
    """Stage malformed records in the driver's process; they have RAW, and may have SOURCE_PATH and DETAIL."""
    count, columns = len(records), task.row_filter.columns
    arrays = [pa.nulls(count, one.type) for one in columns]
    arrays += [pa.repeat(pa.scalar(0, pa.int64()), count)] * task.row_filter.flag_words
    arrays += [
        pa.array([one.get(name) for one in records], pa.string()) for name in (RAW, SOURCE_PATH, DETAIL)
    ]
    flags = map(flag_column, range(task.row_filter.flag_words))
    names = [*columns.names, *flags, RAW, SOURCE_PATH, DETAIL, WHY]
    batch = pa.RecordBatch.from_arrays([*arrays, pa.repeat(MALFORMED_REASON, count)], names=names)
    return _staged(task, iter([batch]), partition=0, number=DRIVER)


def _staged(task: StageTask, batches: Iterator[pa.RecordBatch], *, partition: int, number: int) -> TaskReport:
    report = TaskReport.of(task.row_filter, partition=partition, number=number)
    with StagingWriter(task.tables, number) as staging:
        with (
            Completions() as completions,
            ObjectWriter(task.data, task.store, task.delivery_id, partition, completions) as data,
            ObjectWriter(task.quarantine, task.store, task.delivery_id, partition, completions) as quarantine,
        ):
            rows = _Rows(task=task, report=report, staging=staging, data=data, quarantine=quarantine)
            for piece in _pieces(batches):
                rows.take(piece)
            rows.hold()
            report.data_files, report.quarantine_files = data.close(), quarantine.close()
        report.packed = staging.commit()
    report.details = most_frequent(report.details, DETAILS_REPORTED)
    steps.reached(Step.TASK_COMMITTED)
    return report


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in pieces of a few megabytes, each of a row at least.

    What is made of a piece takes several times as much memory; and each takes a while, whatever it has.
    """
    waiting, size = list[pa.RecordBatch](), 0
    for batch in batches:
        rows = max(batch.num_rows * PIECE_BYTES // max(batch.nbytes, 1), 1)
        for first in range(0, batch.num_rows, rows):
            part = batch.slice(first, rows)
            size += part.nbytes
            if waiting and size > PIECE_BYTES:
                yield pa.concat_batches(waiting)
                waiting, size = [], part.nbytes
            waiting.append(part)
    if waiting:
        yield pa.concat_batches(waiting)


@dataclass(kw_only=True)
class _Rows:
    """Splits a task's rows into what is delivered and what is held; writes both to S3 and stages both."""

    task: StageTask
    report: TaskReport
    staging: StagingWriter
    data: ObjectWriter
    quarantine: ObjectWriter
    held: list[pa.RecordBatch] = field(default_factory=list)  # that wait for more: a batch has a few of them
    held_bytes: int = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Deliver the good rows of a batch; keep those that are held until there are enough of them."""
        row_filter = self.task.row_filter
        rows = without_negative_zeros(cast_to(batch, row_filter.columns), row_filter.keys)
        held, reasons = split_rows(row_filter, batch, rows, self.report)
        if held is not None:
            bad = _quarantine_rows(batch.filter(held), rows.filter(held), reasons, self.task.files)
            self.held.append(bad)
            self.held_bytes += bad.nbytes
            rows = rows.filter(pc.invert(held))
        if rows.num_rows:
            self.deliver(rows)
        if self.held_bytes >= PART_BYTES:
            self.hold()

    def deliver(self, rows: pa.RecordBatch) -> None:
        self.report.delivered += rows.num_rows
        self.report.checksum = self._sum(self.report.checksum, rows)
        self.data.write(_with_identity(rows, self.task))
        self.task.deliver(self.staging, rows)

    def hold(self) -> None:
        """Hold the rows that wait for it, if there are any."""
        if not self.held:
            return
        rows = pa.concat_batches(self.held)
        self.held, self.held_bytes = [], 0
        self.report.quarantined += rows.num_rows
        self.report.quarantine_checksum = self._sum(self.report.quarantine_checksum, rows)
        self.quarantine.write(_with_identity(rows, self.task))
        # in the order of the file's columns, which audit reads
        names = self.task.row_filter.columns.names
        self.task.hold(
            self.staging, rows, [name for name in self.task.quarantine.schema.names if name in names]
        )

    def _sum(self, before: int, rows: pa.RecordBatch) -> int:
        return (before + checksum(rows, self.task.row_filter.columns.names)) % MODULUS


def _quarantine_rows(
    batch: pa.RecordBatch, rows: pa.RecordBatch, reasons: list[list[str]], files: Mapping[int, str]
) -> pa.RecordBatch:
    def kept(name: str) -> pa.Array:
        if name == SOURCE_PATH and ORIGIN in batch.schema.names:
            return pa.array([files.get(number) for number in batch.column(ORIGIN).to_pylist()], pa.string())
        return batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows, pa.string())

    texts = {name: repaired(kept(name)) for name in (RAW, SOURCE_PATH, DETAIL)}
    why = pa.array(reasons, pa.list_(pa.string()))
    arrays = [*(repaired(column) for column in rows.columns), why, *texts.values()]
    return pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, REASONS, *texts])


def _with_identity(rows: pa.RecordBatch, task: StageTask) -> pa.RecordBatch:
    """Return `rows` with the three columns that name their delivery."""
    constants = [pa.scalar(value, kind) for value, kind in zip(task.identity, IDENTITY.types, strict=True)]
    arrays = [*rows.columns, *(pa.repeat(value, rows.num_rows) for value in constants)]
    return pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, *IDENTITY.names])


def stage_log(
    tables: StagingTables,
    columns: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    *,
    partition: int,
    number: int,
) -> StagedChanges:
    """COPY one task's changes into the log's staging table, in one transaction.

    Returns the task's number and how many rows it staged.
    """
    del partition
    count = 0
    assert tables.log is not None
    with StagingWriter(tables, number) as staging:
        for batch in batches:
            count += batch.num_rows
            staging.copy(tables.log, cast_to(batch, columns))
        staging.commit()
    return number, count
