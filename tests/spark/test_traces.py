"""A run is one tree of spans under the trace that started it, and at its end the collector has the ledger's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from etl.common import steps
from etl.common.database import transaction
from etl.common.errors import ContractBroken
from etl.common.steps import PHASES
from etl.ledger.telemetry.metrics import families
from tests.support.data.orders import NAME, Order, orders
from tests.support.home import Home
from tests.support.receivers import Receiver, receiving

TRACE, TASK = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def traced(home: Home, collector: Receiver) -> Home:
    settings = home.place.settings.model_copy(update={"otlp": collector.address})
    return replace(home, place=replace(home.place, settings=settings))


def spans(collector: Receiver) -> list[Span]:
    found = []
    for body in posted(collector, "/v1/traces"):
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            assert named(of_resource.resource.attributes)["service.name"] == "sluice"
            found += [span for scope in of_resource.scope_spans for span in scope.spans]
    return found


def metrics(collector: Receiver) -> dict[str, Metric]:
    """Return what the one request with metrics had, by their names."""
    [body] = posted(collector, "/v1/metrics")
    [of_resource] = ExportMetricsServiceRequest.FromString(body).resource_metrics
    assert named(of_resource.resource.attributes)["service.name"] == "sluice"
    [scope] = of_resource.scope_metrics
    assert len({one.name for one in scope.metrics}) == len(scope.metrics)
    return {one.name: one for one in scope.metrics}


def posted(collector: Receiver, path: str) -> list[bytes]:
    assert {one for one, _ in collector.taken} <= {"/v1/traces", "/v1/metrics"}
    return [body for taken, body in collector.taken if taken == path]


def attributes(span: Span) -> dict[str, str | int]:
    return named(span.attributes)


def named(pairs: Iterable[KeyValue]) -> dict[str, str | int]:
    return {one.key: one.value.string_value or one.value.int_value for one in pairs}


def test_a_run_is_one_tree_under_the_trace_that_started_it(
    home: Home, collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{TASK}-01")
    for name in "abc":
        home.land(f"orders/{name}.jsonl", orders(10 * ord(name), 6))
    done = traced(home, collector).run()
    found = spans(collector)
    assert {span.trace_id.hex() for span in found} == {TRACE}
    [root] = [span for span in found if span.name == "run"]
    assert root.parent_span_id.hex() == TASK
    assert attributes(root) == {"sluice.pipeline": NAME, "sluice.run": done.run}
    batches = sorted(
        (span for span in found if span.name == "batch"), key=lambda one: one.start_time_unix_nano
    )
    assert [attributes(one)["sluice.delivery"] for one in batches] == done.deliveries
    assert len(found) == 1 + 2 * (1 + len(PHASES))
    for batch in batches:
        assert batch.parent_span_id == root.span_id
        assert root.start_time_unix_nano <= batch.start_time_unix_nano
        phases = [span for span in found if span.parent_span_id == batch.span_id]
        assert [one.name for one in sorted(phases, key=lambda one: one.start_time_unix_nano)] == [*PHASES]
        for before, after in pairwise(phases):
            assert before.end_time_unix_nano == after.start_time_unix_nano
        assert batch.end_time_unix_nano <= root.end_time_unix_nano
    assert {span.status.code for span in found} == {Status.STATUS_CODE_UNSET}

    with transaction(home.place.services.postgres, one_snapshot=True) as cursor:
        told = {one.name: one for one in families(cursor) if one.samples}
    sent = metrics(collector)
    assert sent.keys() == told.keys()
    for name, metric in sent.items():
        points = metric.sum.data_points if told[name].type == "counter" else metric.gauge.data_points
        values = [(named(one.attributes), one.as_double or one.as_int) for one in points]
        assert values == [(one.labels, one.value) for one in told[name].samples], name
    rows = sent["sluice_delivered_rows"].sum
    assert (rows.is_monotonic, rows.data_points[0].as_int) == (True, 18)
    assert rows.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE

    collector.taken.clear()
    home.land("orders/d.jsonl", [Order(id=None)])
    with pytest.raises(ContractBroken):
        traced(home, collector).run()
    failed = {span.name: span for span in spans(collector)}
    assert {failed[name].status.message for name in ("run", "batch")} == {"ContractBroken"}
    assert failed["stage"].status.code == Status.STATUS_CODE_UNSET
    assert "transaction" not in failed
    [how] = metrics(collector)["sluice_pipeline_standing"].gauge.data_points
    assert named(how.attributes) == {"pipeline": NAME, "standing": "stopped"}
    assert steps._observers == ()


def test_a_collector_that_is_away_fails_no_run(home: Home, collector: Receiver) -> None:
    collector.answer = 400
    home.land("orders/a.jsonl", orders(0, 3))
    assert traced(home, collector).run().outcome == "done"
    assert (collector.refused > 0, collector.taken) == (True, [])
