"""What is done with the app, hour by hour, kept up to date while the hour's actions come in.

Land generated ones with `sluice land actions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Files, Pipeline, Upsert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCES = (Files("actions/**/*.jsonl", max_files=6),)
SCHEMA = "phone string, at timestamp, action string"


def actions_per_hour(df: DataFrame) -> DataFrame:
    """Count the actions, with one row for each hour and action."""
    from pyspark.sql import functions as F

    hours = df.withWatermark("at", "3 hours").groupBy(F.window("at", "1 hour"), "action")
    counts = hours.agg(F.count(F.lit(1)).alias("actions"), F.max("at").alias("latest"))
    return counts.select(F.col("window.start").alias("hour"), "action", "actions", "latest")


PIPELINE = Pipeline(
    name="actions_per_hour",
    sources=SOURCES,
    schema=SCHEMA,
    transform=actions_per_hour,
    suite="actions_per_hour",
    sink=Upsert(keys=("hour", "action"), newest="latest"),
    late="at",
    max_quarantine_share=0.2,
    schedule="@hourly",
)
