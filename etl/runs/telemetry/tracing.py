"""Makes the spans of a run from the steps of its deliveries: the run, each of its batches, and the phases of these.

A batch's spans are made when it is done, from the moments of its steps, so nothing is left open by an error. The run's
parent is what TRACEPARENT names, as of the task of Airflow that started it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from etl.common import steps
from etl.common.steps import PHASES, Step

TIMEOUT = 5.0  # seconds, of all tries of one request
KEYS = ("pipeline", "run", "batch", "delivery")  # of what the process is at work on


@contextmanager
def spans_of(address: str, command: str, pipeline: str) -> Iterator[None]:
    """Send the spans of what is delivered within to the collector at `address`; the last of them at its end."""
    provider = TracerProvider(resource=resource())
    exporter = OTLPSpanExporter(endpoint=f"{address}/v1/traces", timeout=TIMEOUT)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("sluice", version("sluice"))
    root = tracer.start_span(command, context=_parent(), attributes={"sluice.pipeline": pipeline})
    batches = _Batches(tracer=tracer, root=set_span_in_context(root))
    steps.work_on(pipeline=pipeline, run=None, batch=None, delivery=None)
    try:
        with steps.observed_by(batches.reached):
            yield
    except BaseException as error:
        batches.broke(error)
        root.set_status(StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        root.set_attributes(_at_work("pipeline", "run"))
        root.end()
        provider.shutdown()


def resource() -> Resource:
    """Return what names this service to a collector: as OTEL_SERVICE_NAME has it, else `sluice`."""
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "sluice"}
    return Resource.create({**named, "service.version": version("sluice")})


def _parent() -> Context:
    names = ("traceparent", "tracestate")
    return TraceContextTextMapPropagator().extract({name: os.environ.get(name.upper(), "") for name in names})


def _at_work(*keys: str) -> dict[str, str | int]:
    about = steps.at_work()
    return {f"sluice.{key}": value for key in keys if isinstance(value := about.get(key), str | int)}


@dataclass(kw_only=True)
class _Batches:
    """Makes the spans of one batch after the other."""

    tracer: Tracer
    root: Context
    moments: dict[Step, int] = field(default_factory=dict)  # of the batch at work, in ns since 1970

    def reached(self, step: Step) -> None:
        if step == Step.ATTEMPT_OPENED:
            self._end(None, "again")  # one that is attempted once more, by another ruling
            self.moments = {}
        self.moments[step] = time.time_ns()
        if step == Step.BATCH_DONE:
            self._end(None, "delivered")

    def broke(self, error: BaseException) -> None:
        """End the batch at work, which `error` ended."""
        self._end(error, "failed")

    def _end(self, error: BaseException | None, outcome: str) -> None:
        moments, self.moments = self.moments, {}
        if Step.ATTEMPT_OPENED not in moments:
            return
        now = time.time_ns()
        batch = self.tracer.start_span(
            "batch",
            context=self.root,
            start_time=moments[Step.ATTEMPT_OPENED],
            attributes={**_at_work(*KEYS), "sluice.outcome": outcome},
        )
        within = set_span_in_context(batch)
        for name, (first, last) in PHASES.items():
            if first in moments:
                phase = self.tracer.start_span(name, context=within, start_time=moments[first])
                _close(phase, moments.get(last, now), error if last not in moments else None)
        _close(batch, now, error)


def _close(span: Span, at: int, error: BaseException | None) -> None:
    if error is not None:
        span.set_status(StatusCode.ERROR, type(error).__name__)
    span.end(end_time=at)
