"""Tells where a run's time goes and how its pipeline stands by OpenTelemetry, where the setting is on.

Off, nothing is observed, read or imported.
"""

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
    """Send one tree of spans of what `deliver` does, and the pipeline's metrics at its end, where the setting is on.

    A collector that is away fails nothing.
    """

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
        from etl.runs.telemetry.otlp_metrics import send_metrics
        from etl.runs.telemetry.tracing import spans_of

        try:
            with spans_of(address, deliver.__name__, pipeline.name):
                return deliver(workspace, pipeline, *args, **kwargs)
        finally:
            send_metrics(address, workspace.services.postgres, pipeline.name)

    return tracing


def _installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # of a part of the name
        return False
