"""The newest event of each of 5,000 devices, of which a fifth send something on a day: one file and one batch a day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.events import SCHEMA
from etl.pipeline import Files, Pipeline, Upsert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def events(df: DataFrame) -> DataFrame:
    return df


PIPELINE = Pipeline(
    name="bench_devices",
    sources=(Files("bench_devices/**/*.jsonl", max_files=1),),
    schema=SCHEMA,
    transform=events,
    sink=Upsert(keys=("device_id",), newest="event_time"),
    interval="dt={interval:%Y-%m-%d}",
)
