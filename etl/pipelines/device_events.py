"""Readings of devices, each once: doubles within the watermark are left out, implausible and late ones are held.

Land generated ones with `sluice land devices`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Append, Files, Pipeline, day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOURCES = (Files("devices/**/*.jsonl", max_files=6),)
# `faulty` is what a technician found: the generator knows it at once.
SCHEMA = "device string, reading bigint, at timestamp, temperature double, battery double, voltage double, faulty boolean"


def device_events(df: DataFrame) -> DataFrame:
    """Return each reading once: one that comes again within the watermark is left out.

    A device numbers its readings, and sends one again when it was not acknowledged.
    """
    return df.withWatermark("at", "3 hours").dropDuplicatesWithinWatermark(["device", "reading"])


PIPELINE = Pipeline(
    name="device_events",
    sources=SOURCES,
    schema=SCHEMA,
    transform=device_events,
    suite="device_events",
    sink=Append(partition_by=day("at")),
    late="at",
    max_quarantine_share=0.2,
    schedule="@hourly",
)
