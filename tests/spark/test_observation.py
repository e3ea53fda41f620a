"""What a job observed is all of its input, once, or is told not to be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from etl.spark.observation import observed, observed_as_json, observes_all_once

Join = Callable[[DataFrame, DataFrame], DataFrame]
ROWS = 6


def product(df: DataFrame, table: DataFrame) -> DataFrame:
    return df.join(table.hint("shuffle_replicate_nl"))


def product_of_dealt_out(df: DataFrame, table: DataFrame) -> DataFrame:
    return df.repartition(2).join(table.hint("shuffle_replicate_nl"))


def merge(df: DataFrame, table: DataFrame) -> DataFrame:
    return df.join(table.hint("merge"), df.id == table.k)


def merge_in_place(df: DataFrame, table: DataFrame) -> DataFrame:
    return df.coalesce(1).join(table.coalesce(1).hint("merge"), df.id == table.k)


def broadcast(df: DataFrame, table: DataFrame) -> DataFrame:
    return df.join(table.hint("broadcast"), df.id == table.k)


def outer(df: DataFrame, table: DataFrame) -> DataFrame:
    return df.join(table.hint("broadcast"), df.id == table.k, "left")


@pytest.fixture(params=[True, False], ids=["adaptive", "as planned"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    own = spark.newSession()
    own.conf.set("spark.sql.adaptive.enabled", str(request.param).lower())
    return own


@pytest.mark.parametrize("join", [product, product_of_dealt_out, merge, merge_in_place, broadcast, outer])
@pytest.mark.parametrize("keys", [0, 3], ids=["no row", "rows"])
@pytest.mark.parametrize("generated", [True, False], ids=["generated", "interpreted"])
def test_a_plan_that_is_said_to_take_all_rows_once_has_done_so(
    session: SparkSession, join: Join, keys: int, generated: bool
) -> None:
    session.conf.set("spark.sql.codegen.wholeStage", str(generated).lower())
    df = session.range(0, ROWS, numPartitions=2).observe("read", F.count(F.lit(1)).alias("rows"))
    table = session.range(0, keys, numPartitions=3).where("rand() >= 0").withColumnRenamed("id", "k")
    job = join(df, table).dropDuplicates()
    job.collect()
    try:
        rows = observed(job, "read")["rows"]
    except KeyError:  # the input was not taken at all, which whoever asks learns
        return
    assert rows == ROWS or not observes_all_once(job)


@pytest.mark.parametrize("join", [None, merge, broadcast])
def test_a_plan_of_every_day_is_said_to_take_all_rows_once(spark: SparkSession, join: Join | None) -> None:
    df = spark.range(0, ROWS, numPartitions=2).observe("read", F.count(F.lit(1)).alias("rows"))
    table = spark.range(0, 3, numPartitions=3).withColumnRenamed("id", "k")
    job = join(df, table) if join else df.selectExpr("id * 2").distinct()
    job.collect()
    assert observes_all_once(job)


def test_numbers_and_texts_are_the_same_as_json(spark: SparkSession) -> None:
    odd = ['2 tab\there, "quoted" \\ and ñ 漢 🙂 \x01', "0 "]
    df = spark.createDataFrame([(one, 2**62) for one in odd], "told string, number long").coalesce(1)
    job = df.observe(
        "read",
        F.collect_list("told").alias("reports"),
        F.max("number").alias("most"),
        F.collect_list(F.nullif("told", "told")).alias("none"),
    )
    job.collect()
    assert (
        observed_as_json(job, "read") == observed(job, "read") == {"reports": odd, "most": 2**62, "none": []}
    )
