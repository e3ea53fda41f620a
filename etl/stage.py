"""Runs on the executors: one task's rows to Parquet on S3 and to PostgreSQL's staging tables, in one pass.

Nothing that a task writes can be seen by a reader: its objects are in no Iceberg metadata, its rows in a
staging table of the attempt, under the number of the task. The transaction merges only the rows of tasks
whose message the driver received, so a task that ran twice counts once. This module imports neither
pyspark nor pyiceberg, whose import costs each cold worker a second.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl import steps
from etl.checksum import MODULUS, checksum
from etl.columns import IDENTITY
from etl.declaration import Sink, Upsert
from etl.limits import breaches, repaired
from etl.objects import FileSpec, ObjectStore, ObjectWriter, StagedFile
from etl.staging import StagingTables, StagingWriter, plain_values
from etl.steps import Step
from etl.verdict import FLAGS_PER_WORD, SAMPLES_PER_RULE, StageRule

MALFORMED = "malformed"
UNREADABLE_RAW = "unreadable file: "  # begins what is held in the place of a record, before the reason
RAW, SOURCE_PATH, REASONS = "_raw", "_source_path", "_reasons"
WHY = "_why"  # of a record that never became a row: the one reason


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Which rows go to quarantine."""

    rules: tuple[StageRule, ...]  # a row that breaks one of these is held
    whole: str | None = None  # hold every row, for this reason

    @classmethod
    def by(cls, rules: Iterable[StageRule]) -> Hold:
        """As the suite says, nobody having decided otherwise."""
        return cls(rules=tuple(rule for rule in rules if rule.quarantines))


@dataclass(frozen=True, kw_only=True)
class Sieve:
    """What tells the rows to deliver from those to hold."""

    columns: pa.Schema  # the transform's output in the common types
    words: int  # how many int64 columns of flags follow the columns
    sampled: tuple[StageRule, ...]  # rules whose failing values are reported
    hold: Hold
    keys: tuple[str, ...]  # of an upsert sink: a row without one of them is held
    partitioned_by: str | None  # the column that partitions the lake

    @classmethod
    def of(
        cls, sink: Sink, columns: pa.Schema, words: int, rules: tuple[StageRule, ...], hold: Hold
    ) -> Sieve:
        """Of rows that go to the sink, judged by these rules."""
        return cls(
            columns=columns,
            words=words,
            sampled=rules,
            hold=hold,
            keys=sink.keys if isinstance(sink, Upsert) else (),
            partitioned_by=sink.partition_by.column if sink.partition_by else None,
        )


@dataclass(frozen=True, kw_only=True)
class StageTask:
    """All that a task must know to stage its rows; pickled to the executors."""

    delivery_id: int
    stream_id: str
    batch_id: int
    sieve: Sieve
    data: FileSpec
    quarantine: FileSpec
    store: ObjectStore
    tables: StagingTables
    on_step: steps.Listener | None = None


@dataclass(kw_only=True)
class TaskReport:
    """What one task staged; only the reports of winning tasks reach the driver."""

    partition: int
    task: int
    delivered: int = 0
    quarantined: int = 0
    histograms: tuple[Counter[int], ...] = ()  # per word of flags: value -> rows
    reasons: Counter[str] = field(default_factory=Counter)  # reason -> quarantined rows that carry it
    samples: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)  # rule number -> failing values
    data_files: list[StagedFile] = field(default_factory=list)
    quarantine_files: list[StagedFile] = field(default_factory=list)
    checksum: int = 0
    quarantine_checksum: int = 0

    @classmethod
    def of(cls, sieve: Sieve, *, partition: int, number: int) -> TaskReport:
        """A report of no rows yet."""
        words = tuple(Counter[int]() for _ in range(sieve.words))
        return cls(partition=partition, task=number, histograms=words)


def stage(task: StageTask, batches: Iterator[pa.RecordBatch], *, partition: int, number: int) -> TaskReport:
    """Write every row of `batches` to exactly one of the two tables, on S3 and in staging, or raise.

    `number` tells this run of the partition from any other. Memory is bounded by a few batches and the
    open objects' buffers, whatever the partition's size.
    """
    steps.listen(task.on_step)
    report = TaskReport.of(task.sieve, partition=partition, number=number)
    data = ObjectWriter(task.data, task.store, task.delivery_id, partition)
    quarantine = ObjectWriter(task.quarantine, task.store, task.delivery_id, partition)
    try:
        with StagingWriter(task.tables, number) as staging:
            staging.copy(_delivered(task, batches, report, data, quarantine, staging))
            staging.copy_quarantine()
            report.data_files, report.quarantine_files = data.close(), quarantine.close()
            staging.commit()
    except BaseException:
        data.abort()
        quarantine.abort()
        raise
    steps.reached(Step.TASK_COMMITTED)
    return report


def _delivered(
    task: StageTask,
    batches: Iterator[pa.RecordBatch],
    report: TaskReport,
    data: ObjectWriter,
    quarantine: ObjectWriter,
    staging: StagingWriter,
) -> Iterator[pa.RecordBatch]:
    """Split each batch, write both halves to S3 and the held one to staging; yield the delivered one."""
    sieve, names = task.sieve, task.sieve.columns.names
    in_order = [
        name for name in task.quarantine.schema.names if name in names
    ]  # the file's, which audit reads
    for batch in batches:
        rows = conform(batch, sieve.columns)
        held, reasons = sift(sieve, batch, rows, report)
        if held is not None:
            bad = _quarantine_rows(batch.filter(held), rows.filter(held), reasons)
            report.quarantined += bad.num_rows
            report.quarantine_checksum = (report.quarantine_checksum + checksum(bad, names)) % MODULUS
            quarantine.write(_with_identity(bad, task))
            staging.hold(bad, in_order)
            rows = rows.filter(pc.invert(held))
        if rows.num_rows:
            report.delivered += rows.num_rows
            report.checksum = (report.checksum + checksum(rows, names)) % MODULUS
            data.write(_with_identity(rows, task))
            yield rows


def conform(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The batch's own columns in the common types."""
    return pa.RecordBatch.from_arrays(
        [
            batch.column(f.name) if batch.column(f.name).type == f.type else batch.column(f.name).cast(f.type)
            for f in columns
        ],
        schema=columns,
    )


def sift(
    sieve: Sieve, batch: pa.RecordBatch, rows: pa.RecordBatch, report: TaskReport
) -> tuple[pa.Array | None, list[list[str]]]:
    """Which rows are held (None: none is), and the reasons of each held row, in order.

    `rows` are the batch's own columns in the common types. Flags, reasons and samples go into the report.
    """
    words = [batch.column(f"_flags{word}") for word in range(sieve.words)]
    for word, histogram in zip(words, report.histograms, strict=True):
        for entry in pc.value_counts(word).to_pylist():
            histogram[entry["values"]] += entry["counts"]
    _take_samples(sieve, rows, words, report)
    found: list[tuple[str, pa.Array]] = []
    if RAW in batch.schema.names:
        found += [(one, pc.equal(batch.column(WHY), one)) for one in pc.unique(batch.column(WHY)).to_pylist()]
    else:
        found += [(rule.reason, hit) for rule in sieve.hold.rules if (hit := _hits(rule, words)) is not None]
        found += breaches(rows, keys=sieve.keys, partitioned_by=sieve.partitioned_by)
    if sieve.hold.whole is not None:
        found.append((sieve.hold.whole, pa.repeat(True, batch.num_rows)))
    if not found:
        return None, []
    held = found[0][1]
    for _, hit in found[1:]:
        held = pc.or_(held, hit)
    masks = [(reason, hit.filter(held).to_pylist()) for reason, hit in found]
    reasons = [[reason for reason, hit in masks if hit[row]] for row in range(len(masks[0][1]))]
    for row in reasons:
        report.reasons.update(row)
    return held, reasons


def _hits(rule: StageRule, words: list[pa.Array]) -> pa.Array | None:
    """The rows that break `rule`, or None when no row does."""
    word, bit = divmod(rule.broken, FLAGS_PER_WORD)
    hit = pc.not_equal(pc.bit_wise_and(words[word], 1 << bit), 0)
    return hit if hit.true_count else None


def _take_samples(sieve: Sieve, rows: pa.RecordBatch, words: list[pa.Array], report: TaskReport) -> None:
    for rule in sieve.sampled:
        taken = report.samples.setdefault(rule.number, [])
        if len(taken) < SAMPLES_PER_RULE and (hit := _hits(rule, words)) is not None:
            some = rows.select(list(rule.columns)).filter(hit).slice(0, SAMPLES_PER_RULE - len(taken))
            taken += zip(*(_python_values(column) for column in some.columns), strict=True)


def _python_values(values: pa.Array) -> list[Any]:
    """As Python has them; as text where its calendar ends."""
    try:
        found: list[Any] = repaired(values).to_pylist()
    except (OverflowError, ValueError):
        return plain_values(values)
    return found


def _quarantine_rows(batch: pa.RecordBatch, rows: pa.RecordBatch, reasons: list[list[str]]) -> pa.RecordBatch:
    def kept(name: str) -> pa.Array:
        return batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows, pa.string())

    texts = [repaired(column) for column in (*rows.columns, kept(RAW), kept(SOURCE_PATH))]
    arrays = [*texts[:-2], pa.array(reasons, pa.list_(pa.string())), *texts[-2:]]
    return pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, REASONS, RAW, SOURCE_PATH])


def _with_identity(rows: pa.RecordBatch, task: StageTask) -> pa.RecordBatch:
    """`rows` with the three columns that name their delivery."""
    identity = (task.stream_id, task.batch_id, task.delivery_id)
    constants = [pa.scalar(value, kind) for value, kind in zip(identity, IDENTITY.types, strict=True)]
    arrays = [*rows.columns, *(pa.repeat(value, rows.num_rows) for value in constants)]
    return pa.RecordBatch.from_arrays(arrays, names=[*rows.schema.names, *IDENTITY.names])


def dump(report: object) -> pa.RecordBatch:
    """The message that a task sends to the driver: one row, one binary column."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])


def load(message: bytes) -> Any:
    """The report within a message that `dump` made."""
    return pickle.loads(message)
