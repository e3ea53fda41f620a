"""Each impression of an ad with the clicks of the hour after it, or without one when the watermark says that none will come.

Two topics are joined. A click that was sent twice counts once; one of no impression, or later than an hour, is in no row.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from etl.pipeline import Append, Kafka, Pipeline, Stream, day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IMPRESSIONS = "impression string, ad string, publisher string, price decimal(9,4), at timestamp"
CLICKS = "click string, impression string, at timestamp"


def ad_attribution(df: DataFrame, *, clicks: DataFrame) -> DataFrame:
    """Return one row for each click within the hour, and one for an impression that has none."""
    from pyspark.sql import functions as F

    shown = df.withColumnRenamed("at", "shown_at").select(
        "impression", "ad", "publisher", "price", "shown_at"
    )
    clicked = clicks.select(
        "click",
        F.col("impression").alias("of"),
        F.col("at").alias("clicked_at"),
        # Clicks without an id are no doubles of one another: each is there for the suite to judge.
        F.when(F.col("click").isNull(), F.concat_ws("/", "_topic", "_partition", "_offset")).alias("place"),
    )
    once = clicked.withWatermark("clicked_at", "2 hours").dropDuplicatesWithinWatermark(["click", "place"])
    within = "of = impression AND clicked_at >= shown_at AND clicked_at < shown_at + INTERVAL 1 HOUR"
    return (
        shown.withWatermark("shown_at", "2 hours")
        .join(once, F.expr(within), "leftOuter")
        .withColumn("seconds", F.expr("timestampdiff(SECOND, shown_at, clicked_at)"))
        .drop("of", "place")
    )


PIPELINE = Pipeline(
    name="ad_attribution",
    sources=(
        Kafka(("ad-impressions",), max_offsets=100_000),
        Kafka(("ad-clicks",), stream="clicks", max_offsets=100_000),
    ),
    schema=IMPRESSIONS,
    streams={"clicks": Stream(schema=CLICKS, late="at")},
    transform=ad_attribution,
    suite="ad_attribution",
    sink=Append(partition_by=day("shown_at")),
    late="at",
    max_quarantine_share=0.2,
    follow=True,  # the watermark moves while a run sees records of both topics
    every=timedelta(seconds=10),
)
