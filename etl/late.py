"""Records that come after the watermark has passed them: told at the source, so that none is dropped in silence.

Spark drops, within a transform that keeps state, what is not newer than the watermark as of the batch before; of a window
its end counts. Here the record's own time does, so all that Spark would drop is among what is told. The watermark is known
when a batch begins, not when its query is planned, so the tasks are told by a property of their job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

LATE = "late"
_WATERMARK = "sluice.watermark"


def set_watermark(spark: SparkSession, watermark_ms: int | None) -> None:
    """From here on the jobs of this thread, and of queries that it starts, know the watermark (ms since 1970), or none."""
    told = None if watermark_ms is None else str(watermark_ms)
    spark.sparkContext.setLocalProperty(_WATERMARK, told)  # type: ignore[arg-type]


def is_late(moment: str) -> Column:
    """Whether a record's moment is not newer than the job's watermark, or is not given at all."""
    from pyspark.sql.pandas.functions import arrow_udf

    found: Column = arrow_udf(_not_after_watermark, "boolean")(moment)  # type: ignore[call-overload]
    return found


def _not_after_watermark(moments: pa.Array) -> pa.Array:
    from pyspark import TaskContext

    context = TaskContext.get()
    told = context.getLocalProperty(_WATERMARK) if context else None
    if told is None:
        return moments.is_null()
    watermark = pa.scalar(int(told) * 1000, pa.timestamp("us", tz="UTC"))
    return pc.fill_null(pc.less_equal(moments, watermark), True)
