"""Delays by carrier and airport, with the sums over all airports and over all carriers; each batch is the whole table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Pipeline, Replace
from etl.pipelines.flights import SCHEMA, SOURCES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ALL = "all"


def delays_by_carrier(df: DataFrame) -> DataFrame:
    """Sum up the delays by carrier and airport.

    There is one row for each carrier and airport, one for each carrier, and one for all; a key that is not
    given stays null.
    """
    from pyspark.sql import functions as F

    sums = df.rollup("carrier", "origin").agg(
        F.count(F.lit(1)).alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.sum("dep_delay").alias("minutes_late"),
        *(F.grouping(key).alias(f"all of {key}") for key in ("carrier", "origin")),
    )
    return sums.select(
        named("carrier"),
        named("origin"),
        "flights",
        "departed",
        "minutes_late",
        F.try_divide("minutes_late", "departed").alias("mean_delay"),
    )


def named(key: str) -> Column:
    """Return a key's column with a sum over all named `all`, and a key that is not given left null.

    Both are null in the sums; `grouping` tells them apart.
    """
    from pyspark.sql import functions as F

    return F.when(F.col(f"all of {key}") == 1, ALL).otherwise(F.col(key)).alias(key)


PIPELINE = Pipeline(
    name="delays_by_carrier",
    sources=SOURCES,
    schema=SCHEMA,
    transform=delays_by_carrier,
    suite="delays_by_carrier",
    sink=Replace(),
    schedule="@daily",
)
