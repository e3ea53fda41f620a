"""Flights that left New York City in 2013: every scheduled flight, with its airline, plane and destination.

The cancelled ones have no departure time; they are facts as well. Land them with `sluice land flights`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Append, Files, Lookup, Pipeline, day

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SOURCES = (
    Files("flights/**/*.jsonl", max_files=15),
    Files("flights/**/*.csv", max_files=15),
)
SCHEMA = """
    year int, month int, day int,
    dep_time int, sched_dep_time int, dep_delay int,
    arr_time int, sched_arr_time int, arr_delay int,
    carrier string, flight int, tailnum string, origin string, dest string,
    air_time int, distance int, hour int, minute int, time_hour timestamp
"""
AIRLINES = "carrier string, name string"
AIRPORTS = "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string"
PLANES = """
    tailnum string, year int, type string, manufacturer string, model string,
    engines int, seats int, speed int, engine string
"""


def scheduled_departure() -> Column:
    """Return the moment of the departure as scheduled; null where the columns say none.

    They say it in New York's time.
    """
    from pyspark.sql import functions as F

    zone = F.lit("America/New_York")
    return F.try_make_timestamp("year", "month", "day", "hour", "minute", F.lit(0), timezone=zone)


def departure_or_hour() -> Column:
    """Return the moment of the departure as scheduled, or else the hour that the feed tells itself.

    A transform's state would lose a record without a time.
    """
    from pyspark.sql import functions as F

    return F.coalesce(scheduled_departure(), "time_hour")


def flights(df: DataFrame, *, airlines: DataFrame, airports: DataFrame, planes: DataFrame) -> DataFrame:
    """Add the scheduled departure and what the lookups know; each flight stays exactly one row."""
    from pyspark.sql import functions as F

    airline = airlines.select("carrier", F.col("name").alias("airline"))
    airport = airports.select(F.col("faa").alias("dest"), F.col("name").alias("dest_name"))
    plane = planes.select("tailnum", F.col("year").alias("plane_year"), "manufacturer", "model", "seats")
    return (
        df.withColumn("scheduled_departure", scheduled_departure())
        .join(airline, "carrier", "left")
        .join(airport, "dest", "left")
        .join(plane, "tailnum", "left")
    )


PIPELINE = Pipeline(
    name="flights",
    sources=SOURCES,
    schema=SCHEMA,
    lookups={
        "airlines": Lookup("reference/airlines.csv", schema=AIRLINES, key=("carrier",)),
        "airports": Lookup("reference/airports.csv", schema=AIRPORTS, key=("faa",)),
        "planes": Lookup("reference/planes.csv", schema=PLANES, key=("tailnum",)),
    },
    transform=flights,
    suite="flights",
    sink=Append(partition_by=day("scheduled_departure")),
    schedule="@daily",
    interval="scheduled_departure",
    metrics=(
        "scheduled_departure",
        "dep_delay",
        "arr_delay",
        "air_time",
        "distance",
        "tailnum",
        "carrier",
        "dest",
    ),
    max_quarantine_share=0.05,
)
