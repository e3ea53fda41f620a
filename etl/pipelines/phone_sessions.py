"""The app's sessions: what a phone does with no pause of half an hour, told when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Append, Pipeline, day
from etl.pipelines.actions_per_hour import SCHEMA, SOURCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def phone_sessions(df: DataFrame) -> DataFrame:
    """Return one row for each session of a phone."""
    from pyspark.sql import functions as F

    phones = df.withWatermark("at", "3 hours").groupBy(F.session_window("at", "30 minutes"), "phone")
    sessions = phones.agg(
        F.max("at").alias("last"),
        F.count(F.lit(1)).alias("actions"),
        F.count_if(F.col("action") == "pay").alias("payments"),
    )
    return sessions.select(
        "phone", F.col("session_window.start").alias("began"), "last", "actions", "payments"
    )


PIPELINE = Pipeline(
    name="phone_sessions",
    sources=SOURCES,
    schema=SCHEMA,
    transform=phone_sessions,
    suite="phone_sessions",
    sink=Append(partition_by=day("began")),
    late="at",
    max_quarantine_share=0.2,
    schedule="@hourly",
)
