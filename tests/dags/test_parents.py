"""A task names itself to the command that it starts as Airflow's own spans and events name it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from etl.airflow.operator import SluiceRunOperator
from etl.airflow.process import Command, Finished
from etl.airflow.retries import RunFailed
from tests.support.airflow.by_hand import execute

PARENT = "airflow/events.deliver/0190a1b2-0000-7000-8000-000000000001"


def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the environment that the operator gives its command, which is not run."""
    seen: dict[str, Any] = {}

    def run(command: Any, _: object) -> Finished:
        seen.update(command.environment)
        return Finished(exit_code=70, printed="", result=None, said=())

    monkeypatch.setattr(Command, "run", run)
    with pytest.raises(RunFailed):
        execute(SluiceRunOperator(task_id="deliver", pipeline="events"))
    return seen


def test_a_task_without_spans_and_events_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(monkeypatch).keys().isdisjoint({"TRACEPARENT", "OPENLINEAGE_PARENT_ID"})


def test_a_task_names_its_span_and_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider is not installed here: a module of its name has the function that its macros have."""
    macros = ModuleType("macros")
    vars(macros)["lineage_parent_id"] = lambda ti: PARENT
    for name in ("", ".plugins", ".plugins.macros"):
        monkeypatch.setitem(sys.modules, f"airflow.providers.openlineage{name}", macros)
    span = SpanContext(trace_id=1, span_id=2, is_remote=False, trace_flags=TraceFlags(1))
    with use_span(NonRecordingSpan(span)):
        seen = given(monkeypatch)
    assert seen["OPENLINEAGE_PARENT_ID"] == PARENT
    assert seen["TRACEPARENT"] == f"00-{1:032x}-{2:016x}-01"
