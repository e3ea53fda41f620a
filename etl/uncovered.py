"""Rows of an upsert sink that come back into force when a replay takes away the newer ones that covered them.

The table has one row a key, the lake every change. Once the replaced rows are gone, each of their keys has the
newest of what the other live deliveries brought, exactly as if the replaced ones had never been; and over that
the replay's own rows are merged as any. A row of the table is at least as new as all that it covers. So where the
replay brings one that is as new as that, it wins, and the lake need not be asked; it is asked for the other keys
alone, and not read where there are none.

Which keys these are, and their changes, is staged before the lock, and under the lock found out once more. Whatever
adds to the changes moves the Iceberg table's pointer, so a commit that came in between is noticed by the swap, and a
key that only now needs its changes by the second look: what is missing is staged, and the transaction tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from psycopg2 import sql

from etl.columns import DELIVERY
from etl.database import Cursor, run, session
from etl.errors import NeedsPerson
from etl.spans import written
from etl.stage import StageTask, conform
from etl.staging import StagingTables, StagingWriter
from etl.statements import statement
from etl.stored import parquet
from etl.warehouse import NOTED, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from etl.batch import Sinks

StagedChanges = tuple[int, int]  # the number of a winning task, and how many rows it staged

LISTED = 10_000  # keys; of more the log is asked by what was replaced, which Spark reads by itself


class ChangeLog(Protocol):
    """Where the changes of a pipeline's keys are."""

    @property
    def replaced(self) -> Sequence[str]:
        """The objects whose rows are taken away, as far as they are there."""

    @property
    def lost(self) -> bool:
        """Whether some are gone, so that nobody can tell all keys whose rows are taken away."""

    def stage(self, task: StageTask, files: Sequence[str], keys: pa.Table | None) -> list[StagedChanges]:
        """Stage all rows of these objects that have one of these keys, or, None, a key of the replaced rows; `lost`: any."""


@dataclass(kw_only=True)
class Uncovered:
    """What is staged of the change log for one replay."""

    dsn: str = field(repr=False)
    pipeline: str
    warehouse: Warehouse
    log: ChangeLog
    task: StageTask
    brought: Sequence[int]  # the tasks that staged the replay's own rows
    replaced: tuple[int, ...]
    as_found: bool  # the table may lack rows that it should have
    deliveries: set[int] = field(default_factory=set)  # staged so far, of all keys that were asked for
    tasks: list[StagedChanges] = field(default_factory=list)

    def catch_up(self) -> None:
        """Stage what live deliveries have brought and is not staged yet; once more when the draft's base is known.

        What is staged of a delivery that another replay takes out of force meanwhile is not put back.
        """
        if self.as_found and not self.log.lost and not self.tasks:
            self._stage_replaced()
        with session(self.dsn) as cursor:
            if self.has_grown(cursor) and not self.log.lost:
                self.deliveries.clear()
            keys = None if self.log.lost else self._keys(cursor)
            live, files = self._missing(cursor)
        if files and (keys is None or keys.num_rows):
            self.tasks += self.log.stage(self.task, files, keys)
        self.deliveries |= live

    def _stage_replaced(self) -> None:
        """For their keys, which the table may not tell; of no use where nothing else could come back."""
        with session(self.dsn) as cursor:
            _, files = self._missing(cursor)
        if files:
            self.tasks += self.log.stage(self.task, self.log.replaced, None)

    def _missing(self, cursor: Cursor) -> tuple[set[int], list[str]]:
        """The deliveries that stay in force, and the objects of those that are not staged yet."""
        values = {"pipeline": self.pipeline, "replaced": list(self.replaced)}
        live = {number for (number,) in run(cursor, "uncovered", "live", values)}
        values["deliveries"] = sorted(live - self.deliveries)
        return live, [path for (path,) in run(cursor, "uncovered", "files", values)]

    def has_grown(self, cursor: Cursor) -> bool:
        """Whether the change log of keys is needed that it was not asked for; it is to be, in what follows."""
        return self.warehouse.ask(cursor, self.task.tables, self.brought, self.replaced) > 0

    def _keys(self, cursor: Cursor) -> pa.Table | None:
        """All that the log was asked for; None: they are too many to be listed."""
        from etl.recount import copy_rows, exact  # with pyiceberg, which the executors do without

        columns = pa.schema([self.warehouse.columns.field(name) for name in self.warehouse.keys])
        parts = {"log": sql.Identifier(self.task.tables.log or ""), "most": sql.Literal(LISTED + 1)}
        command = statement("uncovered", "asked", columns=exact(columns), noted=sql.Literal(NOTED), **parts)
        found: list[pa.RecordBatch] = []
        copy_rows(cursor, command, columns, found.append)
        keys = pa.Table.from_batches(found, columns)
        return keys if keys.num_rows <= LISTED else None

    def put_back(self, cursor: Cursor) -> None:
        """Fill the keys that the table lost, once the replaced rows are removed."""
        assert self.task.tables.log is not None
        self.warehouse.put_back(
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
) -> StagedChanges:
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
    sinks: Sinks
    schema: StructType  # of the transform's output
    supersedes: tuple[int, ...]  # the deliveries that are replaced
    replaced: Sequence[str]
    lost: bool
    connections: int

    def stage(self, task: StageTask, files: Sequence[str], keys: pa.Table | None) -> list[StagedChanges]:
        from pyspark.errors import AnalysisException
        from pyspark.sql.types import LongType, StructField, StructType

        from etl.candidates import candidates
        from etl.sparkbatch import collect, in_tasks

        may_have = files
        if keys is not None:
            with session(task.tables.dsn) as cursor:
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
            if error.getCondition() == "PATH_NOT_FOUND":
                self._refuse(task, [*files, *self.replaced])
            raise
        columns = pa.schema([*task.sieve.columns, pa.field(DELIVERY, pa.int64())])
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
        with session(task.tables.dsn) as cursor:
            run(cursor, "uncovered", "deliveries", {"pipeline": name, "paths": gone})
            named = {*self.supersedes, *(number for (number,) in cursor.fetchall())}
            run(cursor, "replay", "by_rows", {"deliveries": sorted(named)})
            origins = {number for (number,) in cursor.fetchall()}
        drop = "" if named <= origins else " --releases drop"  # else some are releases
        raise NeedsPerson(
            f"{name}, not replayed: what some keys had before can't be told, for {len(gone)} of the objects that"
            f" may have it are gone from S3, such as {', '.join(gone[:3])}",
            remedy=f"put them back, or `sluice replay {name} --deliveries {written(origins)} --accept-changed{drop}` reads"
            " their inputs again",
        )
