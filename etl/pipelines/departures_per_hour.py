"""Departures from New York City by airport and hour, kept up to date while the year's flights come in.

An hour's row is written again whenever a batch brings more of its flights, until the watermark has passed it; a flight
that comes later still is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Pipeline, Upsert, month
from etl.pipelines.flights import SCHEMA, SOURCES, departure_or_hour

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def departures_per_hour(df: DataFrame) -> DataFrame:
    """Count the departures, with one row for each airport and hour in which one was scheduled."""
    from pyspark.sql import functions as F

    flights = df.withColumn("departure", departure_or_hour()).withWatermark("departure", "2 days")
    hours = flights.groupBy(F.window("departure", "1 hour"), "origin").agg(
        F.count(F.lit(1)).alias("scheduled"),
        F.count("dep_time").alias("departed"),
        F.sum(F.when(F.col("dep_delay") > 15, 1).otherwise(0)).alias("delayed"),
        F.max("departure").alias("latest_departure"),
    )
    return hours.select(
        F.col("window.start").alias("hour"), "origin", "scheduled", "departed", "delayed", "latest_departure"
    )


PIPELINE = Pipeline(
    name="departures_per_hour",
    sources=SOURCES,
    schema=SCHEMA,
    transform=departures_per_hour,
    suite="departures_per_hour",
    sink=Upsert(keys=("hour", "origin"), newest="latest_departure", partition_by=month("hour")),
    late="time_hour",
    schedule="@daily",
)
