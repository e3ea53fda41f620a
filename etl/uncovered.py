"""Rows of an upsert sink that come back into force when a replay takes away the newer ones that covered them.

The table has one row a key, the lake every change. Once the replaced rows are gone, each of their keys has the
newest of what the other live deliveries brought, exactly as if the replaced ones had never been; and over that
the replay's own rows are merged as any. The changes are staged before the lock. Whatever adds to them moves the
Iceberg table's pointer, so a commit that came in between is noticed by the swap; what it brought is staged, and
the transaction tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from etl.columns import DELIVERY
from etl.database import Cursor, run, session
from etl.stage import StageTask, conform
from etl.staging import StagingTables, StagingWriter
from etl.stored import parquet
from etl.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

Staged = tuple[int, int]  # the number of a winning task, and how many rows it staged


class ChangeLog(Protocol):
    """Where the changes of a pipeline's keys are."""

    def stage(self, task: StageTask, files: Sequence[str]) -> list[Staged]:
        """Stage all rows of these objects that have a key of the replaced rows."""


@dataclass(kw_only=True)
class Uncovered:
    """What is staged of the change log for one replay."""

    dsn: str = field(repr=False)
    pipeline: str
    log: ChangeLog
    task: StageTask
    replaced: tuple[int, ...]
    deliveries: set[int] = field(default_factory=set)  # staged so far
    tasks: list[Staged] = field(default_factory=list)

    def catch_up(self) -> None:
        """Stage what live deliveries have brought and is not staged yet; once more when the draft's base is known.

        What is staged of a delivery that another replay takes out of force meanwhile is not put back.
        """
        values = {"pipeline": self.pipeline, "replaced": list(self.replaced)}
        with session(self.dsn) as cursor:
            live = {number for (number,) in run(cursor, "uncovered", "live", values)}
            values["deliveries"] = sorted(live - self.deliveries)
            files = [path for (path,) in run(cursor, "uncovered", "files", values)]
        if files:
            self.tasks += self.log.stage(self.task, files)
        self.deliveries |= live

    def put_back(self, cursor: Cursor, warehouse: Warehouse) -> None:
        """Fill the keys that the table lost, once the replaced rows are removed."""
        assert self.task.tables.log is not None
        warehouse.put_back(
            cursor,
            self.task.tables.log,
            [number for number, _ in self.tasks],
            expected=sum(count for _, count in self.tasks),
        )


def stage_log(
    tables: StagingTables,
    columns: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    *,
    partition: int,
    number: int,
) -> Staged:
    """Runs on the executors: COPY of one task's changes, in one transaction."""
    del partition
    count = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal count
        for batch in batches:
            count += batch.num_rows
            yield conform(batch, columns)

    assert tables.log is not None
    with StagingWriter(replace(tables, data=tables.log), number) as staging:
        staging.copy(counted())
        staging.commit()
    return number, count


@dataclass(frozen=True, kw_only=True)
class LakeLog:
    """The change log as the pipeline's Parquet files have it, read by Spark."""

    spark: SparkSession
    schema: StructType  # of the transform's output
    keys: tuple[str, ...]
    replaced: Sequence[str]  # objects whose rows are taken away
    connections: int

    def stage(self, task: StageTask, files: Sequence[str]) -> list[Staged]:
        from pyspark.sql.types import LongType, StructField, StructType

        from etl.sparkbatch import collect, in_tasks

        if not self.replaced:
            return []
        keys = [self.schema[name] for name in self.keys]
        touched = parquet(self.spark, self.replaced, StructType(keys))
        logged = StructType([*self.schema.fields, StructField(DELIVERY, LongType())])
        changes = parquet(self.spark, files, logged)
        found = changes.join(touched, on=list(self.keys), how="left_semi").coalesce(self.connections)
        columns = pa.schema([*task.sieve.columns, pa.field(DELIVERY, pa.int64())])
        staged: list[Staged] = collect(in_tasks(found, partial(stage_log, task.tables, columns)))
        return staged
