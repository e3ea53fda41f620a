"""What users import to declare a pipeline and to load declarations."""

from __future__ import annotations

from etl.pipeline.declaration import (
    Airflow,
    Append,
    Files,
    Kafka,
    Lookup,
    Model,
    Partition,
    Pipeline,
    Rate,
    Replace,
    Scorer,
    Sink,
    Socket,
    Stream,
    Upsert,
    day,
    hour,
    identity,
    month,
)
from etl.pipeline.loader import load_pipeline, load_pipelines, loadable, loadable_alone
from etl.pipeline.thresholds import Freshness, Volume

__all__ = [
    "Airflow",
    "Append",
    "Files",
    "Freshness",
    "Kafka",
    "Lookup",
    "Model",
    "Partition",
    "Pipeline",
    "Rate",
    "Replace",
    "Scorer",
    "Sink",
    "Socket",
    "Stream",
    "Upsert",
    "Volume",
    "day",
    "hour",
    "identity",
    "load_pipeline",
    "load_pipelines",
    "loadable",
    "loadable_alone",
    "month",
]
