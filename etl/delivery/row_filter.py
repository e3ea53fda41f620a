"""Splits a task's rows into delivered and held ones, and gives each held row every reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.common.record_columns import DETAIL, FUTURE_REASON, MALFORMED_REASON, RAW, SOURCE_PATH, WHY
from etl.common.wording import visible
from etl.pipeline import Sink
from etl.quality.verdict import FLAGS_PER_WORD, SAMPLES_PER_RULE, StageRule, flag_column
from etl.sinks.lake.parquet_writer import StagedFile
from etl.sinks.limits import breaches, repaired
from etl.sinks.modes import mode_of
from etl.sinks.warehouse.packed_rows import PackedRows
from etl.sinks.warehouse.staging import plain_values

DETAILS_REPORTED = 20  # of a task: what most of its malformed records have in common
DETAILS_COUNTED = 1_000  # at a time, in the task
LONGEST_DETAIL = 200  # characters of one
_TOLD = (MALFORMED_REASON, FUTURE_REASON)  # of which records files and details are counted


@dataclass(frozen=True, kw_only=True)
class HoldPolicy:
    """Which rows go to quarantine."""

    rules: tuple[StageRule, ...]  # a row that breaks one of these is held
    whole: str | None = None  # hold every row, for this reason

    @classmethod
    def by(cls, rules: Iterable[StageRule]) -> HoldPolicy:
        """Return what to hold as the suite says, nobody having decided otherwise."""
        return cls(rules=tuple(rule for rule in rules if rule.quarantines))


@dataclass(frozen=True, kw_only=True)
class RowFilter:
    """What tells the rows to deliver from those to hold."""

    columns: pa.Schema  # the transform's output in the common types
    flag_words: int  # how many int64 columns of flags follow the columns
    sampled: tuple[StageRule, ...]  # rules whose failing values are reported
    hold: HoldPolicy
    keys: tuple[str, ...]  # a row without one of them is held
    partitioned_by: str | None  # the column that partitions the lake

    @classmethod
    def of(
        cls, sink: Sink, columns: pa.Schema, flag_words: int, rules: tuple[StageRule, ...], hold: HoldPolicy
    ) -> RowFilter:
        """Make the filter of rows that go to the sink and are judged by these rules."""
        key = mode_of(sink).key
        return cls(
            columns=columns,
            flag_words=flag_words,
            sampled=rules,
            hold=hold,
            keys=key.columns if key else (),
            partitioned_by=sink.partition_by.column if sink.partition_by else None,
        )


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
    details: Counter[tuple[str, str]] = field(default_factory=Counter)  # (file, detail) -> malformed records
    data_files: list[StagedFile] = field(default_factory=list)
    quarantine_files: list[StagedFile] = field(default_factory=list)
    checksum: int = 0
    quarantine_checksum: int = 0
    packed: list[PackedRows] = field(default_factory=list)  # all for PostgreSQL that it has not staged there

    @classmethod
    def of(cls, row_filter: RowFilter, *, partition: int, number: int) -> TaskReport:
        """Return a report of no rows yet."""
        histograms = tuple(Counter[int]() for _ in range(row_filter.flag_words))
        return cls(partition=partition, task=number, histograms=histograms)


def cast_to(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the batch's own columns in the common types."""
    return pa.RecordBatch.from_arrays(
        [
            batch.column(f.name) if batch.column(f.name).type == f.type else batch.column(f.name).cast(f.type)
            for f in columns
        ],
        schema=columns,
    )


def split_rows(
    row_filter: RowFilter, batch: pa.RecordBatch, rows: pa.RecordBatch, report: TaskReport
) -> tuple[pa.Array | None, list[list[str]]]:
    """Tell which rows are held (None: none is), and the reasons of each held row, in order.

    `rows` are the batch's own columns in the common types. Flags, reasons and samples go into the report.
    """
    flag_words = [batch.column(flag_column(word)) for word in range(row_filter.flag_words)]
    for word, histogram in zip(flag_words, report.histograms, strict=True):
        for count in pc.value_counts(word).to_pylist():
            histogram[count["values"]] += count["counts"]
    _take_samples(row_filter, rows, flag_words, report)
    masks: list[tuple[str, pa.Array]] = []
    if RAW in batch.schema.names:
        masks += [(one, pc.equal(batch.column(WHY), one)) for one in pc.unique(batch.column(WHY)).to_pylist()]
        _count_details(batch, report)
    else:
        masks += [
            (rule.reason, hit)
            for rule in row_filter.hold.rules
            if (hit := _hits(rule, flag_words)) is not None
        ]
        masks += breaches(rows, keys=row_filter.keys, partitioned_by=row_filter.partitioned_by)
    if row_filter.hold.whole is not None:
        masks.append((row_filter.hold.whole, pa.repeat(True, batch.num_rows)))
    if not masks:
        return None, []
    held = masks[0][1]
    for _, hit in masks[1:]:
        held = pc.or_(held, hit)
    listed = [(reason, hit.filter(held).to_pylist()) for reason, hit in masks]
    reasons = [[reason for reason, hit in listed if hit[row]] for row in range(len(listed[0][1]))]
    for row in reasons:
        report.reasons.update(row)
    return held, reasons


def _hits(rule: StageRule, flag_words: list[pa.Array]) -> pa.Array | None:
    """Tell which rows break `rule`; None when no row does."""
    word, bit = divmod(rule.broken, FLAGS_PER_WORD)
    hit = pc.not_equal(pc.bit_wise_and(flag_words[word], 1 << bit), 0)
    return hit if hit.true_count else None


def _count_details(batch: pa.RecordBatch, report: TaskReport) -> None:
    """Count the records that are held, but for late ones, by file and detail; where very many differ, forget the rarest."""
    malformed = batch.select([SOURCE_PATH, DETAIL]).filter(pc.is_in(batch.column(WHY), pa.array(_TOLD)))
    paths, details = (repaired(column).to_pylist() for column in malformed.columns)
    for (path, detail), records in Counter(zip(paths, details, strict=True)).items():
        pair = _file_of(path or ""), visible((detail or "")[:LONGEST_DETAIL])[:LONGEST_DETAIL]
        report.details[pair] += records
    report.details = most_frequent(report.details, DETAILS_COUNTED)


def _file_of(path: str) -> str:
    """Return the file of a record, or its partition of Kafka: each record of these has a path of its own."""
    return visible(path.rpartition("/")[0] if path.startswith("kafka://") else path)


def most_frequent(counts: Counter[tuple[str, str]], most: int) -> Counter[tuple[str, str]]:
    """Return at most so many of the counts, the largest first, and of equal ones the first by name."""
    return Counter(dict(sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:most]))


def _take_samples(
    row_filter: RowFilter, rows: pa.RecordBatch, flag_words: list[pa.Array], report: TaskReport
) -> None:
    for rule in row_filter.sampled:
        taken = report.samples.setdefault(rule.number, [])
        if len(taken) < SAMPLES_PER_RULE and (hit := _hits(rule, flag_words)) is not None:
            some = rows.select(list(rule.columns)).filter(hit).slice(0, SAMPLES_PER_RULE - len(taken))
            taken += zip(*(_python_values(column) for column in some.columns), strict=True)


def _python_values(values: pa.Array) -> list[Any]:
    """Return the values as Python has them; as text where its calendar ends."""
    try:
        listed: list[Any] = repaired(values).to_pylist()
    except (OverflowError, ValueError):
        return plain_values(values)
    return listed
