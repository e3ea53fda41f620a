"""The planes that left New York City in 2013: one row each, as of its last departure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Lookup, Pipeline, Upsert
from etl.pipelines.flights import PLANES, SCHEMA, SOURCES, scheduled_departure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def fleet(df: DataFrame, *, planes: DataFrame) -> DataFrame:
    """Return what each flight tells of its plane; the newest is the one that stays.

    Flights of an unknown plane, those without a tail number, tell nothing.
    """
    from pyspark.sql import functions as F

    plane = planes.select(
        "tailnum", F.col("year").alias("built"), "manufacturer", "model", "engines", "seats"
    )
    seen = df.where("tailnum IS NOT NULL").select(
        "tailnum", "carrier", F.col("dest").alias("last_dest"), scheduled_departure().alias("last_departure")
    )
    return seen.join(plane, "tailnum", "left")


PIPELINE = Pipeline(
    name="fleet",
    sources=SOURCES,
    schema=SCHEMA,
    lookups={"planes": Lookup("reference/planes.csv", schema=PLANES, key=("tailnum",))},
    transform=fleet,
    suite="fleet",
    sink=Upsert(keys=("tailnum",), newest="last_departure"),
    schedule="@daily",
)
