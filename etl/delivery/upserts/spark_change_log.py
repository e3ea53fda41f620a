"""Stages rows of the change log by a Spark job: the part of an upsert's replay that runs on executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from etl.common.database import transaction
from etl.common.errors import NeedsPerson
from etl.common.number_ranges import format_ranges
from etl.common.statements import Statements
from etl.delivery.stage import StagedChanges, StageTask, stage_log
from etl.ledger.deliveries import origins
from etl.sinks.columns import DELIVERY
from etl.spark.frames import parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from etl.sinks.open import Sinks

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class LakeLog:
    """The change log as the pipeline's Parquet files have it, read by Spark."""

    spark: SparkSession
    sinks: Sinks
    schema: StructType  # of the transform's output
    supersedes: tuple[int, ...]  # the deliveries that are replaced
    replaced: Sequence[str]
    lost: bool
    connections: int
    withdraws: bool = False  # nothing comes in the place of what is replaced

    def stage(self, task: StageTask, files: Sequence[str], keys: pa.Table | None) -> list[StagedChanges]:
        from pyspark.errors import AnalysisException
        from pyspark.sql.types import LongType, StructField, StructType

        from etl.sinks.lake.key_pruning import candidates
        from etl.spark.java_errors import Cause, classify
        from etl.spark.tasks import collect, in_tasks

        may_have = files
        if keys is not None:
            with transaction(task.tables.dsn) as cursor:
                pointer = self.sinks.table.pointer(cursor)
            may_have = candidates(self.sinks.table, pointer or "", files, keys)
        if not may_have:
            return []
        logged = StructType([*self.schema.fields, StructField(DELIVERY, LongType())])
        try:
            changes = parquet(self.spark, may_have, logged)
            if not self.lost:
                touched = self._touched(keys)
                changes = changes.join(touched, on=list(self.sinks.warehouse.keys), how="left_semi")
        except AnalysisException as error:
            if Cause.FILE_GONE in classify(error):
                self._refuse(task, [*files, *self.replaced])
            raise
        columns = pa.schema([*task.row_filter.columns, pa.field(DELIVERY, pa.int64())])
        job = in_tasks(changes.coalesce(self.connections), partial(stage_log, task.tables, columns))
        staged: list[StagedChanges] = collect(job)
        return staged

    def _touched(self, keys: pa.Table | None) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        if keys is None:
            columns = StructType([self.schema[name] for name in self.sinks.warehouse.keys])
            return parquet(self.spark, self.replaced, columns)
        return F.broadcast(self.spark.createDataFrame(keys))

    def _refuse(self, task: StageTask, files: Sequence[str]) -> None:
        """Raise NeedsPerson where some of these objects are gone, with the deliveries that bring their rows again."""
        name, gone = self.sinks.pipeline.name, self.sinks.lake.gone(files)
        if not gone:
            return
        with transaction(task.tables.dsn) as cursor:
            STATEMENTS.execute(cursor, "deliveries", pipeline=name, paths=gone)
            named = {*self.supersedes, *(number for (number,) in cursor.fetchall())}
            first = origins(cursor, sorted(named))
        if self.withdraws:
            raise NeedsPerson(
                f"{name} did not go back: what some keys had before is unknown, because {len(gone)} of the objects that may"
                f" have it are gone from S3, such as {', '.join(gone[:3])}",
                remedy=f"put them back; or go back before the first delivery that wrote some of them, {min(first)}, whose"
                " inputs are then read again",
            )
        drop = "" if named <= {*first} else " --releases drop"  # else some are releases
        raise NeedsPerson(
            f"{name}, not replayed: what some keys had before is unknown, because {len(gone)} of the objects that"
            f" may have it are gone from S3, such as {', '.join(gone[:3])}",
            remedy="put them back, or"
            f" `sluice replay {name} --deliveries {format_ranges(first)} --accept-changed{drop}` reads"
            " their inputs again",
        )
