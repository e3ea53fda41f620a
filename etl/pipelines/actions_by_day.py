"""What is done with the app by action and by day, with the sums over all of either; each batch is the whole table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Pipeline, Replace
from etl.pipelines.actions_per_hour import SCHEMA, SOURCES
from etl.pipelines.delays_by_carrier import named

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def actions_by_day(df: DataFrame) -> DataFrame:
    """Count the actions by action and day, with the sums over all of either.

    There is one row for each action and day, one for each action, one for each day, and one for all. A key
    that is not given stays null. No action is too late: each counts on its own day. Days are those of UTC.
    """
    from pyspark.sql import functions as F

    sums = (
        df.withColumn("day", F.date_format("at", "yyyy-MM-dd"))
        .cube("action", "day")
        .agg(
            F.count(F.lit(1)).alias("actions"),
            F.min("at").alias("earliest"),
            F.max("at").alias("latest"),
            *(F.grouping(key).alias(f"all of {key}") for key in ("action", "day")),
        )
    )
    return sums.select(named("action"), named("day"), "actions", "earliest", "latest")


PIPELINE = Pipeline(
    name="actions_by_day",
    sources=SOURCES,
    schema=SCHEMA,
    transform=actions_by_day,
    suite="actions_by_day",
    sink=Replace(),
    max_quarantine_share=0.2,
    schedule="@daily",
)
