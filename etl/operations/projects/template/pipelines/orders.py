"""Orders of a shop, each with its total."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Append, Files, Pipeline, day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_total(df: DataFrame) -> DataFrame:
    """Return each order with its total."""
    from pyspark.sql import functions as F

    return df.withColumn("total", F.col("price") * F.col("quantity"))


PIPELINE = Pipeline(
    name="orders",
    sources=(Files("orders/**/*.jsonl"),),  # below the landing
    schema="order_id string, at timestamp, price decimal(10,2), quantity int",
    transform=with_total,
    suite="orders",
    sink=Append(partition_by=day("at")),
    max_quarantine_share=0.2,  # a batch of which more is held stops
    schedule="@hourly",
)
