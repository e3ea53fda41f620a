"""The events, judged by the suite's six rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.events import SCHEMA
from etl.pipeline import Append, Files, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def events(df: DataFrame) -> DataFrame:
    return df


PIPELINE = Pipeline(
    name="bench_judged",
    sources=(Files("bench_judged/**/*.jsonl", max_files=10_000),),
    schema=SCHEMA,
    transform=events,
    suite="events",
    sink=Append(),
)
