"""Counts by key, written again whenever one of them changes: what it costs to keep few keys, or many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Files, Pipeline, Upsert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def count(df: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return df.groupBy("key").agg(F.count(F.lit(1)).alias("events"), F.max("at").alias("latest"))


PIPELINE = Pipeline(
    name="bench_keys",
    sources=(Files("bench_keys/*.jsonl", max_files=1),),
    schema="key bigint, at timestamp",
    transform=count,
    sink=Upsert(keys=("key",), newest="latest"),
)
