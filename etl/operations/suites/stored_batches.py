"""Reads delivered batches as they are stored: every row of the transform's output, and its verdict.

Only committed files of live deliveries are read. The sinks are not touched.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.common.database import Cursor, rows, transaction
from etl.common.errors import SetupError
from etl.common.migrations import migrate
from etl.common.record_columns import RAW, REASONS
from etl.common.statements import Statements
from etl.pipeline import Pipeline
from etl.sinks.modes import mode_of
from etl.spark.frames import parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STATEMENTS = Statements(__name__)


LAST = 20  # batches, unless told


@dataclass(frozen=True, kw_only=True)
class StoredBatch:
    """A live delivery and its files."""

    delivery_id: int
    stream_id: str
    batch_id: int
    kind: str  # stream or replay
    committed_at: dt.datetime
    suite_digest: str  # SHA-256 of the suite that judged it
    malformed: int  # records that never became rows
    records: int | None  # that were read, where the rows are not of them alone
    data: Sequence[str]  # s3:// URIs of the delivered rows
    quarantine: Sequence[str]  # of the held ones, malformed records among them

    @property
    def title(self) -> str:
        """Name the delivery as the Data quality pages do: what is beside the stream has no number in it."""
        return f"batch {self.batch_id}" if self.kind == "stream" else f"{self.kind} {self.delivery_id}"

    @property
    def name(self) -> str:
        return f"{self.title} (delivery {self.delivery_id})" if self.kind == "stream" else self.title


@dataclass(frozen=True, kw_only=True)
class SaidOfRule:
    """How one expectation came out when the batch was delivered."""

    reason: str
    known_by: str  # over its names
    expectation: str  # GX's snake case type
    severity: str
    success: bool
    element_count: int | None
    unexpected_count: int | None
    kwargs: Mapping[str, Any] | None  # the expectation's own; None: the report is no longer kept


def stored_batches(dsn: str, pipeline: Pipeline, last: int = LAST) -> list[StoredBatch]:
    """Return the last batches that are in force, oldest first.

    A release from quarantine is none: its rows are those of the batch that held them. Raises SetupError where
    there is no batch.
    """
    if last < 1:
        raise SetupError(f"--last {last} leaves no batch", remedy="give a number from 1 on")
    migrate(dsn)
    with transaction(dsn) as cursor:
        records = rows(STATEMENTS.execute(cursor, "batches", pipeline=pipeline.name, last=last))
    if not records:
        raise SetupError(
            f"Pipeline {pipeline.name} has no delivered batch yet", remedy=f"`sluice run {pipeline.name}`"
        )
    return [StoredBatch(**one) for one in mode_of(pipeline.sink).in_force(records)]


def releases_since(dsn: str, pipeline: Pipeline, batch: StoredBatch) -> int:
    """Count the releases in force that were delivered after the batch."""
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "releases_since", pipeline=pipeline.name, delivery=batch.delivery_id)
        [(count,)] = cursor.fetchall()
    return int(count)


def said_of(dsn: str, batch: StoredBatch) -> list[SaidOfRule]:
    """Return the verdict that the batch was delivered with, in the order of its suite."""
    with transaction(dsn) as cursor:
        rules = rows(STATEMENTS.execute(cursor, "rules", delivery=batch.delivery_id))
        report = report_of(cursor, batch)
    results = report["results"] if report else []
    kwargs = dict(enumerate(declared_kwargs(result["expectation_config"]) for result in results))
    return [SaidOfRule(kwargs=kwargs.get(rule.pop("number")), **rule) for rule in rules]


def report_of(cursor: Cursor, batch: StoredBatch) -> dict[str, Any] | None:
    """Return the whole report that the batch was delivered with; None where it is no longer kept."""
    record = STATEMENTS.execute(cursor, "report", delivery=batch.delivery_id).fetchone()
    report: dict[str, Any] | None = None if record is None else json.loads(record[0])
    return report


def stored_rows(spark: SparkSession, batch: StoredBatch, schema: StructType) -> DataFrame:
    """Read the transform's whole output, delivered and held: the columns of `schema`, then `_reasons`.

    `_reasons` is null in delivered rows. Malformed and late records never became rows, and are not among
    these.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    reasons = StructField(REASONS, ArrayType(StringType()))
    whole = StructType([*schema.fields, reasons, StructField(RAW, StringType())])
    held = parquet(spark, batch.quarantine, whole)
    typed = held.where(F.col(RAW).isNull()).drop(RAW)
    delivered = parquet(spark, batch.data, schema)
    return delivered.withColumn(REASONS, F.lit(None).cast(reasons.dataType)).unionAll(typed)


def declared_kwargs(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an expectation's arguments as the suite has them.

    A rule across batches is without the bounds that the history gave it, but with how it does.
    """
    across = (config.get("meta") or {}).get("across")
    if across is None:
        return dict(config["kwargs"])
    arguments = {
        name: value for name, value in config["kwargs"].items() if name not in ("min_value", "max_value")
    }
    return {**arguments, "across": across}
