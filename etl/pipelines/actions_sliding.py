"""What is done with the app in any hour that begins at a quarter: each window comes once, when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Append, Pipeline
from etl.pipelines.actions_per_hour import SCHEMA, SOURCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def actions_sliding(df: DataFrame) -> DataFrame:
    """Count the actions, with one row for each window and action; each action is in four windows."""
    from pyspark.sql import functions as F

    windows = df.withWatermark("at", "3 hours").groupBy(F.window("at", "1 hour", "15 minutes"), "action")
    counts = windows.agg(F.count(F.lit(1)).alias("actions"))
    return counts.select(
        F.col("window.start").alias("begins"), F.col("window.end").alias("ends"), "action", "actions"
    )


PIPELINE = Pipeline(
    name="actions_sliding",
    sources=SOURCES,
    schema=SCHEMA,
    transform=actions_sliding,
    suite="actions_sliding",
    sink=Append(),
    late="at",
    max_quarantine_share=0.2,
    schedule="@hourly",
)
