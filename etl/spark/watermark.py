"""Counts records behind the watermark where they are read, so that none is dropped in silence.

In a transform that keeps state Spark drops what is not newer than the watermark as of the batch before; for a window
its end decides. Here the record's own time decides, so the count includes everything that Spark would drop. The
watermark is known when a batch begins, not when its query is planned, so the tasks get it by properties of their job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

LATE = "late"
_WATERMARK = "sluice.watermark"
# Spark puts the properties that are named so into what a task's log lines have with them (SLF4J's MDC).
_LOGGED = f"mdc.{_WATERMARK}"


def set_watermark(spark: SparkSession, watermark_ms: int | None) -> None:
    """Tell the watermark (ms since 1970; None: there is none) to the jobs that follow.

    They are those of this thread, and of queries that it starts.
    """
    value = None if watermark_ms is None else str(watermark_ms)
    for name in (_WATERMARK, _LOGGED):
        spark.sparkContext.setLocalProperty(name, value)  # type: ignore[arg-type]


def is_late(moment: str) -> Column:
    """Tell whether a record's moment is not newer than the job's watermark, or is not given at all."""
    from pyspark.sql.pandas.functions import arrow_udf

    late: Column = arrow_udf(_not_after_watermark, "boolean")(moment)  # type: ignore[call-overload]
    return late


def _not_after_watermark(moments: pa.Array) -> pa.Array:
    from pyspark import TaskContext

    context = TaskContext.get()
    value = context.getLocalProperty(_WATERMARK) if context else None
    if value is None:
        return moments.is_null()
    watermark = pa.scalar(int(value) * 1000, pa.timestamp("us", tz="UTC"))
    return pc.fill_null(pc.less_equal(moments, watermark), True)


def is_behind(moment: Column) -> Column:
    """Tell whether a record's moment is not newer than the job's watermark, or is not given at all.

    Unlike `is_late` it needs no Python, and is for a count alone: where Spark's logging keeps no MDC, it
    tells only of records without a time.
    """
    from pyspark.sql import functions as F

    # reflect() makes text of it: 'null', where there is none
    watermark = F.expr(f"try_cast(reflect('org.slf4j.MDC', 'get', '{_LOGGED}') AS bigint)")
    return F.coalesce(moment <= F.timestamp_millis(watermark), moment.isNull())
