"""The events as they would land minute by minute, which Airflow's scheduler delivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.events import SCHEMA
from etl.pipeline import Append, Files, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def events(df: DataFrame) -> DataFrame:
    return df


PIPELINE = Pipeline(
    name="bench_minutely",
    sources=(Files("bench_minutely/**/*.jsonl"),),
    schema=SCHEMA,
    transform=events,
    suite="events",
    sink=Append(),
    schedule="* * * * *",
)
