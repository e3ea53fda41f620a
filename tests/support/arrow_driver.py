"""Drives the real stage and deliver code from Arrow batches, in a process without Spark."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from etl.common.database import transaction
from etl.delivery import correction
from etl.delivery.batch import DeliveryContext, Receipt, Staged
from etl.delivery.correction import Correction
from etl.delivery.deliver import deliver
from etl.delivery.row_filter import TaskReport
from etl.delivery.stage import StageTask, stage
from etl.ledger import leases, streams
from etl.ledger.inputs import Input
from etl.ledger.offsets import Range
from etl.pipeline import Append, Files, Pipeline, Sink, day
from etl.quality.verdict import Counts, RuleResult, Severity, StageRule, Verdict
from etl.runs.heartbeat import make_known
from etl.sinks.lake.lake import Lake
from etl.sinks.open import open_sinks
from tests.support import oracle

TASKS = itertools.count(100)  # a number for every task that this process ever ran
RULES = tuple(
    StageRule(
        number=bit,
        reason=reason,
        broken=bit,
        columns=(oracle.RULE_COLUMNS[reason],),
        quarantines=reason in oracle.HOLDING,
    )
    for bit, reason in enumerate(oracle.REASONS)
)

Judge = Callable[[Counts], Verdict]
StagePart = Callable[[StageTask, Iterable[pa.RecordBatch], int], TaskReport]


def pipeline(name: str, sink: Sink | None = None) -> Pipeline:
    return Pipeline(
        name=name,
        sources=(Files("events/*.jsonl"),),
        schema="id bigint",
        transform=lambda frame: frame,
        sink=sink or Append(partition_by=day("at")),
    )


def start(
    dsn: str,
    lake: Lake,
    declared: Pipeline,
    *,
    columns: pa.Schema = oracle.COLUMNS,
    rules: tuple[StageRule, ...] = RULES,
    stream_id: str | None = None,
    first_batch: int = 0,
) -> DeliveryContext:
    """Take the lease and open the sinks, as a run does before its first batch."""
    stream_id = stream_id or str(uuid.uuid4())
    with transaction(dsn) as cursor:
        make_known(cursor, declared)
        lease = leases.take_lease(cursor, declared.name)
        streams.register_stream(
            cursor, lease.pipeline, lease.run_id, stream_id, checkpoint="memory", first_batch=first_batch
        )
    return DeliveryContext(
        sinks=open_sinks(declared, columns, dsn=dsn, lake=lake),
        lease=lease,
        stream_id=stream_id,
        first_batch=first_batch,
        checkpoint="memory",
        suite_digest="digest",
        flag_words=1,
        rules=rules,
    )


def start_correction(dsn: str, lake: Lake, declared: Pipeline, change: Correction) -> DeliveryContext:
    """Begin a run beside the stream and open the sinks, as a replay and a release do."""
    with transaction(dsn) as cursor:
        lease = correction.begin(cursor, declared.name, change.name, who=change.who, why=change.why)
    return DeliveryContext(
        sinks=open_sinks(declared, oracle.COLUMNS, dsn=dsn, lake=lake),
        lease=lease,
        stream_id=lease.run_id,
        first_batch=0,
        checkpoint=None,
        suite_digest="digest",
        flag_words=1,
        rules=RULES,
        correction=change,
    )


def passed(counts: Counts) -> Verdict:
    return Verdict(success=True, stops=(), results=(), quarantined=counts.held, suite_digest="digest")


def broken(reason: str, *, table_rule: bool) -> Judge:
    """Return a critical expectation that fails, about rows or about the table."""

    def judge(counts: Counts) -> Verdict:
        result = RuleResult(
            number=0,
            reason=reason,
            expectation_type="expect_something",
            severity=Severity.CRITICAL,
            success=False,
            element_count=None if table_rule else counts.rows,
            unexpected_count=None if table_rule else counts.held,
            where="pass",
            stops=True,
            result={"success": False},
        )
        stops = (f"{reason}: failed",)
        return Verdict(
            success=False, stops=stops, results=(result,), quarantined=counts.held, suite_digest="digest"
        )

    return judge


def here(task: StageTask, part: Iterable[pa.RecordBatch], partition: int) -> TaskReport:
    """Run a task in this process."""
    return stage(task, iter(part), partition=partition, number=next(TASKS))


@dataclass(kw_only=True)
class ArrowBatch:
    """A micro-batch whose rows are Arrow batches: a list of them for each task."""

    batch_id: int
    parts: Sequence[Iterable[pa.RecordBatch]]
    paths: Sequence[str] = ()
    files: Sequence[Input] | None = None  # None: those of `paths`
    malformed: Sequence[pa.RecordBatch] = ()
    judged: Judge = passed
    run_task: StagePart = here
    changes: Sequence[str] = ()
    read: Sequence[Range] = ()  # of Kafka
    records: int | None = None  # of a transform that keeps state: that were read
    dropped: int | None = None  # likewise: left out behind the watermark
    unknown: Mapping[str, int] = field(default_factory=dict)  # records by field that the schema does not name
    staged: list[StageTask] = field(default_factory=list)  # the attempts that were staged

    @property
    def inputs(self) -> Sequence[Input]:
        if self.files is not None:
            return self.files
        return [file(path) for path in self.paths or (f"events/{self.batch_id}.jsonl",)]

    @property
    def ranges(self) -> Sequence[Range]:
        return self.read

    def stage(self, task: StageTask) -> Staged:
        self.staged.append(task)
        reports = [self.run_task(task, part, partition) for partition, part in enumerate(self.parts)]
        malformed = [self.run_task(task, self.malformed, len(self.parts))] if self.malformed else []
        return Staged(
            reports=reports,
            malformed=malformed,
            records=self.records,
            dropped=self.dropped,
            unknown=self.unknown,
        )

    def judge(self, counts: Counts, staged: Staged) -> Verdict:
        return self.judged(counts)

    def changed(self) -> Sequence[str]:
        return self.changes


def file(path: str) -> Input:
    return Input(path=path, uri=f"file:///landing/{path}", size=1, mtime_ms=1, etag=None, source=0)


def of(made: oracle.MadeBatch, *, partitions: int = 2) -> ArrowBatch:
    return ArrowBatch(
        batch_id=made.batch_id,
        parts=[made.arrow(partition, partitions) for partition in range(partitions)],
        paths=made.paths,
        malformed=made.malformed_arrow(),
    )


def reader(run: DeliveryContext) -> oracle.Reader:
    """Return the oracle's eyes for the run's sinks."""
    store = run.sinks.lake.store
    return oracle.Reader(
        dsn=run.sinks.dsn,
        endpoint=store.endpoint,
        region=store.region,
        pipeline=run.lease.pipeline,
        columns=run.sinks.columns,
    )


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    return pa.array(values, pa.int32()).view(kind) if pa.types.is_date32(kind) else pa.array(values, kind)


def batch_of(columns: pa.Schema, *values: list[Any], flags: int = 0) -> pa.RecordBatch:
    arrays = [array(list(one), kind) for one, kind in zip(values, columns.types, strict=True)]
    arrays.append(pa.array([flags] * len(arrays[0]), pa.int64()))
    return pa.RecordBatch.from_arrays(arrays, names=[*columns.names, "_flags0"])


def delivered(run: DeliveryContext, number: int, *batches: pa.RecordBatch) -> Receipt:
    return deliver(run, ArrowBatch(batch_id=number, parts=[list(batches)]))


def rows(batch: pa.RecordBatch) -> oracle.Rows:
    return Counter(oracle.rows_of(batch.drop_columns(["_flags0"])))
