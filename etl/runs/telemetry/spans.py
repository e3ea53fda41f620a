"""Tells where a run's time goes by OpenTelemetry, where the setting is on; off, nothing is observed or imported."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from etl.common.errors import SetupError

if TYPE_CHECKING:
    from etl.pipeline import Pipeline
    from etl.runs.workspace import Workspace

P = ParamSpec("P")
T = TypeVar("T")


def traced(
    deliver: Callable[Concatenate[Workspace, Pipeline, P], T],
) -> Callable[Concatenate[Workspace, Pipeline, P], T]:
    """Send one tree of spans of what `deliver` does, where the setting is on; a collector that is away fails nothing."""

    @wraps(deliver)
    def tracing(workspace: Workspace, pipeline: Pipeline, /, *args: P.args, **kwargs: P.kwargs) -> T:
        address = workspace.settings.otlp
        if address is None:
            return deliver(workspace, pipeline, *args, **kwargs)
        if not _installed():
            raise SetupError(
                "SLUICE_OTLP is set, and OpenTelemetry is not installed",
                remedy="install Sluice with its extra: sluice[opentelemetry]; or unset SLUICE_OTLP",
            )
        from etl.runs.telemetry.tracing import spans_of

        with spans_of(address, deliver.__name__, pipeline.name):
            return deliver(workspace, pipeline, *args, **kwargs)

    return tracing


def _installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # of a part of the name
        return False
