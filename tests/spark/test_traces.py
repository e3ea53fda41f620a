"""A run is one tree of spans under the trace that started it: its batches, and where the time of each went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from etl.common import steps
from etl.common.errors import ContractBroken
from etl.common.steps import PHASES
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
    for path, body in collector.taken:
        assert path == "/v1/traces"
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {one.key: one.value.string_value for one in of_resource.resource.attributes}
            assert named["service.name"] == "sluice"
            found += [span for scope in of_resource.scope_spans for span in scope.spans]
    return found


def attributes(span: Span) -> dict[str, str | int]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


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

    collector.taken.clear()
    home.land("orders/d.jsonl", [Order(id=None)])
    with pytest.raises(ContractBroken):
        traced(home, collector).run()
    failed = {span.name: span for span in spans(collector)}
    assert {failed[name].status.message for name in ("run", "batch")} == {"ContractBroken"}
    assert failed["stage"].status.code == Status.STATUS_CODE_UNSET
    assert "transaction" not in failed
    assert steps._observers == ()


def test_a_collector_that_is_away_fails_no_run(home: Home, collector: Receiver) -> None:
    collector.answer = 400
    home.land("orders/a.jsonl", orders(0, 3))
    assert traced(home, collector).run().outcome == "done"
    assert (collector.refused > 0, collector.taken) == (True, [])
