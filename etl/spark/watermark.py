"""Counts records behind the watermark where they are read, so that none is dropped in silence.

In a transform that keeps state Spark drops what is not newer than the watermark as of the batch before; for a window
its end decides. Here the record's own time decides, so the count includes everything that Spark would drop. The
watermark is known when a batch begins, not when its query is planned, so the tasks get it by properties of their job.

A watermark never goes back: a single record of the next century would make all that follow late. So a record that is
ahead of its bound is held before a watermark can see it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from etl.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

LATE = "late"
Bound = dt.timedelta | str  # how far ahead of the clock; or the column that is the bound
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


def ahead(bounds: Mapping[str, Bound], clock_ms: int | None) -> Column:
    """Say of a record which of its moments is ahead of its bound, as a text; null where none is.

    The clock is `clock_ms`, since 1970; None: that of the query's batch. A moment, or a bound, that is null is not ahead.
    """
    from pyspark.sql import functions as F

    clock = F.current_timestamp() if clock_ms is None else F.timestamp_millis(F.lit(clock_ms))
    found = F.lit(None).cast("string")
    for column, bound in bounds.items():
        found = F.coalesce(found, _ahead(column, bound, clock))
    return found


def _ahead(column: str, bound: Bound, clock: Column) -> Column:
    from pyspark.sql import functions as F

    moment = F.col(quoted(column))
    if isinstance(bound, str):
        limit, named = F.col(quoted(bound)), f", which {bound} is"
    else:
        limit, named = clock + F.lit(bound), f", {bound} from when its batch began"
    said = F.concat(
        F.lit(f"{column}: "), moment.cast("string"), F.lit(" is after "), limit.cast("string"), F.lit(named)
    )
    return F.when(moment > limit, said)
