"""The types of a delivery: its context with the opened sinks, a batch, its staged rows, the receipt.

Free of Spark and of Great Expectations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from etl.common.steps import Listener
from etl.common.wording import moment_of_ms, pluralize
from etl.delivery.correction import Correction
from etl.delivery.kind import DeliveryKind, StreamDelivery
from etl.delivery.row_filter import TaskReport, most_frequent
from etl.delivery.stage import StagedChanges, StageTask
from etl.ledger.inputs import Input
from etl.ledger.leases import Lease
from etl.ledger.offsets import Range
from etl.ledger.stops import LATE_TOLD
from etl.ledger.telemetry.lineage import LineageNote
from etl.quality.verdict import Counts, StageRule, Verdict
from etl.sinks.lake.parquet_writer import StagedFile
from etl.sinks.open import Sinks
from etl.spark.checkpoint.format import About
from etl.spark.watermark import LATE

DETAILS_TOLD = 3  # where a batch stops: what most of its malformed records have in common


class ChangeLog(Protocol):
    """Where the changes of a pipeline's keys are."""

    @property
    def replaced(self) -> Sequence[str]:
        """Return the objects whose rows are taken away, as far as they are there."""

    @property
    def lost(self) -> bool:
        """Tell whether objects of replaced rows are gone, so that nobody can tell all keys of these rows."""

    def stage(self, task: StageTask, files: Sequence[str], keys: pa.Table | None) -> list[StagedChanges]:
        """Stage the rows of these objects that have one of these keys (None: a key of the replaced rows).

        Where `lost`, all their rows are staged.
        """


@dataclass(frozen=True, kw_only=True)
class DeliveryContext:
    """What stays the same for all batches of one run."""

    sinks: Sinks
    lease: Lease
    stream_id: str
    first_batch: int  # of the stream
    checkpoint: str | None  # of the stream; None: beside it
    state: Sequence[str] = ()  # what the stream keeps between batches
    suite_digest: str
    flag_words: int  # int64 columns that the flags take
    rules: tuple[StageRule, ...]
    lookups: Mapping[str, Any] = field(default_factory=dict)  # name -> evidence of its files, or of its model
    correction: Correction | None = None  # beside the stream; None: the stream's next batch
    tells: bool = True  # the lake's marker of each commit
    lineage: LineageNote | None = None  # of each delivery's event; None: no event is sent
    change_log: ChangeLog | None = None  # of an upsert sink, for a replay
    on_step: Listener | None = None  # carried to the executors

    @property
    def kind(self) -> DeliveryKind:
        """Return what the run's deliveries are: batches of the stream, or a correction beside it."""
        return self.correction or StreamDelivery()

    @property
    def retry(self) -> str:
        """Say what a person does to have the deliveries made once more."""
        return self.kind.retry(self.lease.pipeline)


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What the winning tasks wrote for one attempt."""

    reports: Sequence[TaskReport]  # of the transform's output
    malformed: Sequence[TaskReport] = ()  # of records that never became rows
    aggregates: Mapping[str, Any] = field(default_factory=dict)
    records: int | None = None  # that were read, where the rows are not of them alone
    # of files that can't be read to their end, why nothing of it may be delivered
    stops: tuple[str, ...] = ()
    late: int | None = None  # records behind the watermark as they were read, where that is told
    dropped: int | None = None  # behind the watermark, by an operator that keeps state
    unknown: Mapping[str, int] = field(default_factory=dict)  # records by field that the schema does not name
    missing: Mapping[str, int] = field(default_factory=dict)  # records by column that their file lacks
    about: About | None = None  # of a stream that keeps state: what the batch began with

    @property
    def all(self) -> list[TaskReport]:
        return [*self.reports, *self.malformed]

    @property
    def data_files(self) -> list[StagedFile]:
        return [file for report in self.all for file in report.data_files]

    @property
    def quarantine_files(self) -> list[StagedFile]:
        return [file for report in self.all for file in report.quarantine_files]

    @property
    def reasons(self) -> Counter[str]:
        """Count the held rows by reason; a row with two reasons counts under both."""
        total: Counter[str] = Counter()
        for report in self.all:
            total.update(report.reasons)
        return total

    @property
    def most_malformed(self) -> tuple[str, ...]:
        """Say where most of the malformed records are and what is wrong with them, in a few sentences."""
        counts = sum((report.details for report in self.malformed), Counter[tuple[str, str]]())
        told = [
            f"{file}{detail and ': '}{detail} ({pluralize(records, 'record')})"
            for (file, detail), records in most_frequent(counts, DETAILS_TOLD).items()
        ]
        return (*told, *self._late)

    @property
    def late_behind(self) -> int | None:
        """Return the watermark that held late records are behind, in milliseconds since 1970; None: there are none."""
        return self.about.watermark_ms if self.about and self.reasons[LATE] else None

    @property
    def _late(self) -> Iterator[str]:
        """Say of held late records what they are behind: no file of theirs is at fault."""
        if (watermark_ms := self.late_behind) is not None:
            records = pluralize(self.reasons[LATE], "record")
            yield f"{LATE_TOLD}the watermark has reached {moment_of_ms(watermark_ms)} ({records})"

    def counts(self, flag_words: int) -> Counts:
        """Sum up the figures that the suite judges: the winning tasks', in the order of their partitions."""
        reports = sorted(self.reports, key=lambda report: report.partition)
        histograms: tuple[Counter[int], ...] = tuple(Counter() for _ in range(flag_words))
        samples: dict[int, list[tuple[Any, ...]]] = {}
        for report in reports:
            for total, part in zip(histograms, report.histograms, strict=True):
                total.update(part)
            for number, values in report.samples.items():
                samples.setdefault(number, []).extend(values)
        return Counts(
            rows=sum(report.delivered + report.quarantined for report in reports),
            held=sum(report.quarantined for report in reports),
            histograms=histograms,
            samples=samples,
            aggregates=self.aggregates,
            malformed=sum(report.quarantined for report in self.malformed),
            reasons=self.reasons,
            records=self.records,
        )


class Batch(Protocol):
    """A micro-batch: Spark's, or Arrow's in tests of the protocol."""

    @property
    def batch_id(self) -> int: ...

    @property
    def inputs(self) -> Sequence[Input]: ...

    @property
    def ranges(self) -> Sequence[Range]:
        """Return the ranges of offsets that the batch reads of Kafka."""

    def stage(self, task: StageTask) -> Staged:
        """Run the one job that stages the batch, and the small one for malformed records."""

    def judge(self, counts: Counts, staged: Staged) -> Verdict:
        """Return the suite's verdict on the batch."""

    def changed(self) -> Sequence[str]:
        """Return the inputs whose evidence is no longer what it was, each in words."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What became of a batch."""

    batch_id: int
    delivery_id: int
    kind: str = "stream"  # or replay, release, withdrawal
    delivered_before: bool = False  # by an earlier run: nothing was done now
    rows_in: int = 0
    records: int = 0  # that were read
    delivered: int = 0
    quarantined: int = 0
    malformed: int = 0
    late: int = 0  # records that came behind the watermark, or without a time: held, or left to the transform
    dropped: int = 0  # rows, or groups of them, that came behind the watermark and are in neither sink
    unknown: Mapping[str, int] = field(default_factory=dict)  # records by field that the schema does not name
    missing: Mapping[str, int] = field(default_factory=dict)  # records by column that their file lacks
    reasons: Mapping[str, int] = field(default_factory=dict)  # held rows by reason
    failed: tuple[str, ...] = ()  # rules whose expectation failed without stopping the batch
    columns: tuple[str, ...] = ()  # a phrase for each that its tables gained, or that became wider in them
    inputs: int = 0  # files that were read
    files: int = 0  # Parquet files of the table
    seconds: float = 0.0
    phases: Mapping[str, int] = field(default_factory=dict)  # how long each took, in ms

    def json(self) -> dict[str, Any]:
        return vars(self)
