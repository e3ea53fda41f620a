"""Runs a function in each task of a frame, and brings the tasks' messages to the driver."""

from __future__ import annotations

import gc
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from etl.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("sluice")


def in_tasks(frame: DataFrame, work: Callable[..., object]) -> DataFrame:
    """Return a job that calls `work(batches, partition=…, number=…)` in each task of a frame.

    What `work` returns is the task's message.
    """
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import pandas_udf
    from pyspark.util import PythonEvalType

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "runs within a Spark task"
        yield dump(work(batches, partition=context.partitionId(), number=context.taskAttemptId()))
        _spare_imports()

    # `frame.mapInArrow` names column by column, in several calls into the JVM each, and takes a dot in a name for a path.
    columns = ", ".join(map(quoted, frame.columns))
    function: Any = pandas_udf(run, "report binary", PythonEvalType.SQL_MAP_ARROW_ITER_UDF)  # type: ignore[call-overload]
    return DataFrame(
        frame._jdf.mapInArrow(function(F.expr(f"struct({columns})"))._jc, False, None), frame.sparkSession
    )


def read_batches(
    read: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield what `read` makes of the batches of a task."""
    yield from read(batches)
    _spare_imports()


def start_workers(spark: SparkSession) -> None:
    """Start the daemon of a local Spark's Python workers, and one of these, by a job beside whatever comes next."""
    if not (spark.sparkContext.master or "").startswith("local"):
        return
    job = spark.range(1, numPartitions=1).mapInArrow(_passed_on, "id long")

    def start() -> None:
        try:
            job.collect()
        except Exception as error:  # noqa: BLE001 - whoever needs the workers tells what is wrong with them
            log.debug("no worker was started ahead: %s", error)

    threading.Thread(target=start, name="workers", daemon=True).start()


def _passed_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def collect(job: DataFrame) -> list[Any]:
    """Run a job that `in_tasks` made; return what its tasks answered.

    An error of it is raised, SparkEnded where Spark has ended, and not logged as well: Spark's log of it is pages long.
    """
    from etl.spark.jvm import telling_of_end
    from etl.spark.session import unlogged_analysis

    with telling_of_end(job.sparkSession), unlogged_analysis():
        return [load(bytes(row.report)) for row in job.collect()]


@cache
def _spare_imports() -> None:
    """Keep what a worker has imported from its collections of garbage: Spark asks for one after each task (4.3)."""
    gc.freeze()


def dump(report: object) -> pa.RecordBatch:
    """Pack a report into the message that a task sends to the driver: one row, one binary column."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])


def load(message: bytes) -> Any:
    """Unpack the report within a message that `dump` made."""
    return pickle.loads(message)
