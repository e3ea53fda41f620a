"""Each departure from New York City with the weather measured at its airport in the hour before.

Two streams are joined. A departure without a measurement comes when the watermark says that none will.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Append, Files, Pipeline, Stream, day
from etl.pipelines.flights import SCHEMA, SOURCES, departure_or_hour

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WEATHER = """
    origin string, year int, month int, day int, hour int,
    temp double, dewp double, humid double, wind_dir int, wind_speed double, wind_gust double,
    precip double, pressure double, visib double, time_hour timestamp
"""


STREAMS = {"weather": Stream(schema=WEATHER, late="time_hour")}
WITH_WEATHER = (*SOURCES, Files("weather/**/*.parquet", stream="weather", max_files=30))


def flights_weather(df: DataFrame, *, weather: DataFrame) -> DataFrame:
    """Join each departure with the weather of the hour before, if it was measured; one row a flight.

    There is at most one measurement for an airport and hour.
    """
    from pyspark.sql import functions as F

    departures = df.select(
        departure_or_hour().alias("departure"), "carrier", "flight", "origin", "dest", "dep_delay"
    )
    measured = weather.select(
        F.col("origin").alias("station"),
        F.col("time_hour").alias("measured"),
        *("temp", "wind_speed", "wind_gust", "precip", "visib", "pressure"),
    )
    within = "station = origin AND measured <= departure AND measured > departure - INTERVAL 1 HOUR"
    return (
        departures.withWatermark("departure", "3 days")
        .join(measured.withWatermark("measured", "3 days"), F.expr(within), "leftOuter")
        .drop("station")
    )


PIPELINE = Pipeline(
    name="flights_weather",
    sources=WITH_WEATHER,
    schema=SCHEMA,
    streams=STREAMS,
    transform=flights_weather,
    suite="flights_weather",
    sink=Append(partition_by=day("departure")),
    late="time_hour",
    schedule="@daily",
)
