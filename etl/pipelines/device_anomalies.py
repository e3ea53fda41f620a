"""Readings of devices, each with how much of an anomaly it is, by a model of the readings delivered before.

`sluice train device_anomalies` makes the model, from what `device_events` has delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.pipeline import Model, Pipeline, Scorer, Upsert, day
from etl.pipelines.device_events import SCHEMA, SOURCES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def device_anomalies(df: DataFrame, *, anomaly: Scorer) -> DataFrame:
    """Score each reading, and tell whether it is an anomaly, with the version of the model that says so.

    Each value may be plausible by itself: the model knows which ones come together.
    """
    from pyspark.sql import functions as F

    columns = ("device", "reading", "at", "temperature", "voltage")
    scored = df.select(*columns, anomaly.score("temperature", "voltage").alias("score"))
    return scored.select(
        "*",
        (F.col("score") > anomaly.threshold).alias("anomaly"),
        F.lit(anomaly.version).alias("model_version"),
    )


PIPELINE = Pipeline(
    name="device_anomalies",
    sources=SOURCES,
    schema=SCHEMA,
    models={
        "anomaly": Model("device_events", features=("temperature", "voltage"), flagged=0.015, label="faulty")
    },
    transform=device_anomalies,
    suite="device_anomalies",
    sink=Upsert(keys=("device", "reading"), newest="at", partition_by=day("at")),
    metrics=("score",),
    max_quarantine_share=0.2,
    schedule="@hourly",
)
