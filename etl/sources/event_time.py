"""Bounds the time of records: one that is ahead of its bound is held, before a watermark can see it.

A watermark never goes back: a single record of the next century would make all that follow late.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING

from etl.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

Bound = dt.timedelta | str  # how far ahead of the clock; or the column that is the bound


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
