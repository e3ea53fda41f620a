"""Which operators of a transform keep state, by which keys, and what its watermark is on: told by its plan alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.common.record_columns import SOURCE_PATH
from etl.pipelines.device_alerts import device_alerts
from etl.sources.evidence import path_column
from etl.spark import state_plan


def watched(df: DataFrame) -> DataFrame:
    return df.withWatermark("timestamp", "1 hour")


STATEFUL: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "aggregate": (
        lambda df: df.groupBy("value", F.col("value") % 2).count(),
        "Aggregate by value, (value % CAST(2 AS BIGINT)) computing count(1)",
    ),
    "tumbling window": (
        lambda df: watched(df).groupBy(F.window("timestamp", "1 hour"), "value").count(),
        "Aggregate by window (timestamp, 0L, 3600000000L, 0), value computing count(1)",
    ),
    "sliding window": (
        lambda df: watched(df).groupBy(F.window("timestamp", "1 hour", "15 minutes").alias("w")).count(),
        "Aggregate by window (timestamp, 0L, 900000000L, 0, 3600000000L) computing count(1)",
    ),
    "session": (
        lambda df: watched(df).groupBy(F.session_window("timestamp", "30 minutes")).count(),
        "Aggregate by session_window (timestamp, '30 minutes') computing count(1)",
    ),
    "named before": (
        lambda df: df.withColumn("hour", F.date_trunc("hour", "timestamp")).groupBy("hour").count(),
        "Aggregate by hour ('hour', timestamp) computing count(1)",
    ),
    "rollup": (
        lambda df: df.rollup("value").count(),
        "Aggregate by value, spark_grouping_id computing count(1)",
    ),
    "figures of computed columns": (
        lambda df: (
            df.withColumn("n", F.col("value") * 100)
            .groupBy("timestamp")
            .agg(F.round(F.sum("n") / F.count("n")).alias("mean"), F.max("value").alias("m"))
        ),
        (
            "Aggregate by timestamp computing sum(n) (n = (value * CAST(100 AS BIGINT))),"
            " count(n) (n = (value * CAST(100 AS BIGINT))), max(value)"
        ),
    ),
    "path of the file, wherever the landing is": (
        lambda df: (
            df.withColumn(SOURCE_PATH, F.lit("file:///landing/a.csv"))
            .withColumn("file", path_column(F.col(SOURCE_PATH), "/landing"))
            .withColumn("day", F.substring("file", 1, 10))
            .groupBy("file", "day")
            .agg(F.max("file"))
        ),
        "Aggregate by file, day (file, 1, 10) computing max(file)",
    ),
    "arbitrary state": (
        lambda df: device_alerts(
            df.select(F.col("value").cast("string").alias("device"), F.col("timestamp").alias("at"))
        ),
        "TransformWithStateInPySpark by device",
    ),
    "deduplicate": (lambda df: df.dropDuplicates(["value"]), "Deduplicate by value"),
    "join of two streams": (
        lambda df: df.join(df.withColumnRenamed("timestamp", "other"), "value"),
        "Join INNER on (value = value)",
    ),
    "join by computed columns": (
        lambda df: df.withColumn("n", F.col("value") * 2).join(
            df.select((F.col("value") % 3).alias("m"), F.col("timestamp").alias("other")),
            F.expr("n = m AND other > timestamp"),
        ),
        (
            "Join INNER on ((n = m) AND (other > timestamp)) computing (n = (value * CAST(2 AS BIGINT)))"
            " (m = (value % CAST(3 AS BIGINT))) (other = timestamp)"
        ),
    ),
}


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


@pytest.mark.parametrize(("transform", "told"), STATEFUL.values(), ids=STATEFUL)
def test_what_keeps_state_is_told_with_its_keys(
    stream: DataFrame, transform: Callable[[DataFrame], DataFrame], told: str
) -> None:
    assert state_plan.operators(transform(stream)) == (told,)


def test_a_row_by_row_transform_with_an_aggregated_lookup_keeps_none(
    spark: SparkSession, stream: DataFrame
) -> None:
    lookup = spark.range(5).groupBy((F.col("id") % 2).alias("value")).count()
    joined = stream.where("value > 1").unionByName(stream).join(lookup, "value", "left")
    assert state_plan.operators(joined) == ()


WATERMARKS: dict[str, tuple[Callable[[DataFrame], DataFrame], set[str]]] = {
    "as it is read": (lambda df: watched(df).groupBy("timestamp").count(), {"timestamp"}),
    "under another name": (
        lambda df: (
            df.withColumnRenamed("timestamp", "at").withWatermark("at", "1 hour").groupBy("at").count()
        ),
        {"timestamp"},
    ),
    "computed": (
        lambda df: (
            df.withColumn("at", F.date_trunc("hour", "timestamp"))
            .withWatermark("at", "1 hour")
            .groupBy("at")
            .count()
        ),
        set(),
    ),
    "of a transform without state": (watched, set()),
}


@pytest.mark.parametrize(("transform", "wanted"), WATERMARKS.values(), ids=WATERMARKS)
def test_a_watermark_is_on_a_column_of_what_is_read_or_on_a_computed_one(
    stream: DataFrame, transform: Callable[[DataFrame], DataFrame], wanted: set[str]
) -> None:
    found = state_plan.watermarked(transform(stream))
    assert {name for number, name in state_plan.column_ids(stream).items() if number in found} == wanted
