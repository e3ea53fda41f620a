"""Writes a delivery into the ledger in its commit: the row, its inputs, its files, and the verdict.

Every function takes the cursor of the one transaction, whose caller holds the pipeline's lock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from psycopg2.extras import Json, execute_values

from etl.common.database import Cursor, constraint_of
from etl.common.errors import Fenced, InputsChanged
from etl.common.statements import Statements
from etl.ledger.inputs import Input
from etl.ledger.stops import Decision
from etl.quality.metrics import RANKS, ColumnMetrics
from etl.quality.verdict import Verdict
from etl.sinks.lake.parquet_writer import StagedFile

STATEMENTS = Statements(__name__)

PAGE = 10_000  # rows of one INSERT: a batch may have as many inputs


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of a delivery before its commit is drafted: its ledger row, and its manifest."""

    delivery_id: int
    pipeline: str
    stream_id: str
    batch_id: int
    run_id: str
    rows_in: int
    delivered: int
    quarantined: int
    malformed: int
    checksum: int
    quarantine_checksum: int
    suite_digest: str
    lookups: dict[str, object]
    manifest: str
    previous: int | None
    kind: str = "stream"  # or replay, release, withdrawal
    released_from: int | None = None  # of a release: the delivery that had held its rows
    watermark_ms: int | None = None  # of a stream that keeps state: what the batch began with
    time_ms: int | None = None
    records: int | None = None  # that were read, where the rows are not of them alone
    late: int | None = None  # records behind the watermark as they were read, where that is told
    dropped: int | None = None  # behind the watermark, by an operator that keeps state
    unknown: dict[str, int] = field(default_factory=dict)  # records by field that the schema does not name
    missing: dict[str, int] = field(default_factory=dict)  # records by column that their file does not have


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a commit publishes of both tables: where their metadata is, and the snapshot of the data."""

    metadata_location: str
    quarantine_metadata_location: str
    snapshot_id: int | None


def insert_delivery(cursor: Cursor, entry: Entry, published: Published, *, retry: str) -> None:
    """Insert the ledger row of a delivery; raise Fenced, with this remedy, where another one has its number."""
    try:
        STATEMENTS.execute(
            cursor,
            "insert_delivery",
            delivery=entry.delivery_id,
            pipeline=entry.pipeline,
            stream=entry.stream_id,
            batch=entry.batch_id,
            run=entry.run_id,
            rows_in=entry.rows_in,
            delivered=entry.delivered,
            quarantined=entry.quarantined,
            malformed=entry.malformed,
            checksum=entry.checksum,
            quarantine_checksum=entry.quarantine_checksum,
            suite_digest=entry.suite_digest,
            lookups=Json(entry.lookups),
            manifest=entry.manifest,
            previous=entry.previous,
            metadata_location=published.metadata_location,
            quarantine_metadata_location=published.quarantine_metadata_location,
            snapshot_id=published.snapshot_id,
            kind=entry.kind,
            released_from=entry.released_from,
            watermark_ms=entry.watermark_ms,
            time_ms=entry.time_ms,
            records=entry.records,
            late=entry.late,
            dropped=entry.dropped,
            unknown=Json(entry.unknown) if entry.unknown else None,
            missing=Json(entry.missing) if entry.missing else None,
        )
    except psycopg2.IntegrityError as error:
        if constraint_of(error) != "delivery_pkey":
            raise
        raise Fenced.of_number(entry.pipeline, entry.delivery_id, retry=retry) from error


def insert_inputs(cursor: Cursor, entry: Entry, inputs: Sequence[Input], *, remedy: str) -> None:
    """Insert the inputs of a delivery; raise InputsChanged, with this remedy, when one is in another live delivery."""
    values = [
        (entry.delivery_id, entry.pipeline, i.path, i.uri, i.size, i.mtime_ms, i.etag, i.source)
        for i in inputs
    ]
    try:
        if values:
            execute_values(cursor, STATEMENTS.compose("insert_inputs"), values, page_size=PAGE)
    except psycopg2.IntegrityError as error:
        if constraint_of(error) != "one_input_one_delivery":
            raise
        raise InputsChanged(
            f"Batch {entry.batch_id} of {entry.pipeline} was not committed: one of its inputs was delivered before"
            f" ({(error.diag.message_detail or '').strip()})",
            remedy=remedy,
        ) from error


def insert_files(cursor: Cursor, delivery_id: int, kind: str, files: Sequence[StagedFile]) -> None:
    values = [(delivery_id, kind, file.path, file.rows, file.size) for file in files]
    if values:
        execute_values(cursor, STATEMENTS.compose("insert_files"), values, page_size=PAGE)


def insert_quality(cursor: Cursor, delivery_id: int, verdict: Verdict, report: str) -> None:
    results = [
        (
            delivery_id,
            r.number,
            r.reason,
            r.expectation_type,
            str(r.severity),
            r.success,
            r.element_count,
            r.unexpected_count,
            r.where,
            None if r.rule_id == r.reason else r.rule_id,
            r.dimension,
            r.owner,
        )
        for r in verdict.results
    ]
    if results:
        execute_values(cursor, STATEMENTS.compose("insert_quality_rules"), results)
    columns = [_column_metrics(delivery_id, number, one) for number, one in enumerate(verdict.columns)]
    if columns:
        execute_values(cursor, STATEMENTS.compose("insert_column_metrics"), columns)
    STATEMENTS.execute(cursor, "insert_quality", delivery=delivery_id, success=verdict.success, report=report)


def _column_metrics(delivery_id: int, number: int, one: ColumnMetrics) -> tuple[Any, ...]:
    figures = (one.rows, one.nulls, one.nans, one.minimum, one.maximum, one.mean, one.deviation)
    moments = (one.earliest, one.latest)
    estimates = (one.distinct_estimate(), *(one.quantile(rank) for rank in RANKS.values()))
    return delivery_id, one.column, number, *figures, *moments, *estimates, one.distinct, one.quantiles


def report_text(verdict: Verdict, decision: Decision | None = None) -> str:
    """Return the report that is kept with a batch, as JSON text."""
    content = {
        "success": verdict.success,
        "suite_digest": verdict.suite_digest,
        "stops": list(verdict.stops),
        "decision": decision.json() if decision else None,
        "results": [result.result for result in verdict.results],
    }
    return json.dumps(content, default=str)
