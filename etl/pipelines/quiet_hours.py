"""The hours in which nothing was to leave an airport of New York City, with the weather measured there.

Two streams are joined. An hour is quiet when the watermark says that no departure of it will come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Append, Pipeline, month
from etl.pipelines.flights import SCHEMA, departure_or_hour
from etl.pipelines.flights_weather import STREAMS, WITH_WEATHER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def quiet_hours(df: DataFrame, *, weather: DataFrame) -> DataFrame:
    """Return one row for each measurement that has no departure in the hour after it."""
    from pyspark.sql import functions as F

    departures = df.select(F.col("origin").alias("left_from"), departure_or_hour().alias("departure"))
    measured = weather.select("origin", F.col("time_hour").alias("hour"), "temp", "wind_speed", "visib")
    within = "left_from = origin AND departure >= hour AND departure < hour + INTERVAL 1 HOUR"
    return (
        departures.withWatermark("departure", "3 days")
        .join(measured.withWatermark("hour", "3 days"), F.expr(within), "rightOuter")
        .where("left_from IS NULL")
        .drop("left_from", "departure")
    )


PIPELINE = Pipeline(
    name="quiet_hours",
    sources=WITH_WEATHER,
    schema=SCHEMA,
    streams=STREAMS,
    transform=quiet_hours,
    suite="quiet_hours",
    sink=Append(partition_by=month("hour")),
    late="time_hour",
    schedule="@daily",
)
