"""What has ever been done with the app on each phone, told once, when it is done for the first time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Append, Pipeline
from etl.pipelines.actions_per_hour import SCHEMA, SOURCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def features_used(df: DataFrame) -> DataFrame:
    """Return one row for each phone and action, whenever it was done: none is too late.

    Without a watermark the state keeps one entry for each pair, for ever; it grows with the phones, not with
    the days. Which of a pair's records is the first depends on how batches are cut, so nothing else of it is
    told.
    """
    return df.select("phone", "action").dropDuplicates()


PIPELINE = Pipeline(
    name="features_used",
    sources=SOURCES,
    schema=SCHEMA,
    transform=features_used,
    suite="features_used",
    sink=Append(),
    max_quarantine_share=0.2,
    schedule="@hourly",
)
