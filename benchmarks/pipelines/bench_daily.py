"""The events as they would land day by day, one file and one batch a day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.events import SCHEMA
from etl.pipeline import Append, Files, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def events(df: DataFrame) -> DataFrame:
    return df


PIPELINE = Pipeline(
    name="bench_daily",
    sources=(Files("bench_daily/**/*.jsonl", max_files=1),),
    schema=SCHEMA,
    transform=events,
    suite="events",
    sink=Append(),
    interval="dt={interval:%Y-%m-%d}",
)
