"""Sends the ledger's metrics of one pipeline to an OTLP collector: the same that Prometheus reads, once at a run's end.

They are read from the ledger and not counted by the process, so each counter goes on from run to run, and says nothing of
when it began.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from etl.common.database import limit_statements, transaction
from etl.ledger.telemetry.metrics import families
from etl.runs.telemetry.tracing import TIMEOUT, resource

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

log = logging.getLogger("sluice")

LONGEST = "5s"  # of each statement, for they go through all that the pipeline has on record


def send_metrics(address: str, dsn: str, pipeline: str) -> None:
    """Send the pipeline's metrics to the collector at `address`; warn where that fails, whatever it fails of."""
    try:
        exporter = OTLPMetricExporter(endpoint=f"{address}/v1/metrics", timeout=TIMEOUT)
        exporter.export(_data(_read(dsn, pipeline)))  # which warns itself
        exporter.shutdown()
    except Exception as error:  # noqa: BLE001 - what ended the run matters more
        log.warning("the metrics of %s could not be sent: %s", pipeline, error)


def _read(dsn: str, pipeline: str) -> Sequence[Family]:
    with transaction(dsn, one_snapshot=True) as cursor:
        limit_statements(cursor, LONGEST)
        return list(families(cursor, lambda names: [name for name in names if name == pipeline]))


def _data(found: Sequence[Family]) -> MetricsData:
    now = time.time_ns()
    scope = ScopeMetrics(
        scope=InstrumentationScope("sluice", version("sluice")),
        metrics=[_metric(one, now) for one in found if one.samples],
        schema_url="",
    )
    return MetricsData(
        resource_metrics=[ResourceMetrics(resource=resource(), scope_metrics=[scope], schema_url="")]
    )


def _metric(family: Family, now: int) -> Metric:
    points = [
        NumberDataPoint(
            attributes=dict(one.labels),
            start_time_unix_nano=0,  # unknown
            time_unix_nano=now,
            value=one.value if isinstance(one.value, int) else float(one.value),
        )
        for one in family.samples
    ]
    counted = Sum(
        data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE, is_monotonic=True
    )
    data = counted if family.type == "counter" else Gauge(data_points=points)
    return Metric(name=family.name, description=family.documentation, unit="", data=data)
