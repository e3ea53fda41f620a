"""A transform that keeps state between batches is refused; aggregating a lookup is not state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.errors import SetupError
from etl.pipeline import Append, Files, Pipeline
from etl.sparkbatch import refuse_state

PIPELINE = Pipeline(
    name="counts",
    sources=(Files("in/*.jsonl"),),
    schema="value bigint",
    transform=lambda df: df,
    sink=Append(),
)
STATEFUL: dict[str, Callable[[DataFrame], DataFrame]] = {
    "aggregate": lambda df: df.groupBy("value").count(),
    "deduplicate": lambda df: df.dropDuplicates(["value"]),
    "join of two streams": lambda df: df.join(df.withColumnRenamed("timestamp", "other"), "value"),
}


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


@pytest.mark.parametrize("transform", STATEFUL.values(), ids=STATEFUL)
def test_state_between_batches_is_refused(
    stream: DataFrame, transform: Callable[[DataFrame], DataFrame]
) -> None:
    with pytest.raises(SetupError, match="keeps state between batches"):
        refuse_state(PIPELINE, transform(stream))


def test_a_row_by_row_transform_with_an_aggregated_lookup_is_not(
    spark: SparkSession, stream: DataFrame
) -> None:
    lookup = spark.range(5).groupBy((F.col("id") % 2).alias("value")).count()
    refuse_state(PIPELINE, stream.where("value > 1").unionByName(stream).join(lookup, "value", "left"))
