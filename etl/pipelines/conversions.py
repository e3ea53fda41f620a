"""When the app was opened and something was paid within the hour: the other side of `unpaid_openings`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Append, Pipeline, day
from etl.pipelines.actions_per_hour import SCHEMA, SOURCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def conversions(df: DataFrame) -> DataFrame:
    """Pair each opening with each payment of the same phone within an hour after it, once both are there.

    Each pair is a row. An action has no id, so two of one phone and second are two.
    """
    from pyspark.sql import functions as F

    opened = df.where("action = 'open'").select("phone", F.col("at").alias("opened"))
    paid = df.where("action = 'pay'").select(F.col("phone").alias("payer"), F.col("at").alias("paid"))
    within = "payer = phone AND paid > opened AND paid <= opened + INTERVAL 1 HOUR"
    return (
        opened.withWatermark("opened", "3 hours")
        .join(paid.withWatermark("paid", "3 hours"), F.expr(within))
        .withColumn("seconds", F.expr("timestampdiff(SECOND, opened, paid)"))
        .drop("payer")
    )


PIPELINE = Pipeline(
    name="conversions",
    sources=SOURCES,
    schema=SCHEMA,
    transform=conversions,
    suite="conversions",
    sink=Append(partition_by=day("opened")),
    late="at",
    max_quarantine_share=0.2,
    schedule="@hourly",
)
