"""Chooses the kind of a stream by its sources: nothing else in runs asks for it."""

from __future__ import annotations

from typing import Any

from etl.pipeline import Pipeline
from etl.pipeline.replayability import require_replayable
from etl.runs.kinds.base import ContinuedStream, PipelineStream
from etl.runs.workspace import Workspace
from etl.sources.kinds.base import SourceKind
from etl.sources.kinds.declared import kind_of
from etl.sources.kinds.files import FileKind
from etl.sources.kinds.live import LiveKind
from etl.sources.kinds.topics import KafkaKind


def stream_of(workspace: Workspace, pipeline: Pipeline) -> PipelineStream[Any]:
    """Return how the stream of a pipeline goes on."""
    match kind := kind_of(pipeline):
        case LiveKind():
            from etl.runs.kinds.live import LiveStream

            return LiveStream(workspace=workspace, kind=kind)
        case _:
            return _continued(workspace, kind)


def continued_stream_of(workspace: Workspace, pipeline: Pipeline, what: str) -> ContinuedStream[Any]:
    """Return how the stream of a pipeline goes on, of which `what` reads inputs again.

    Raises SetupError for a pipeline of what can't be read again.
    """
    require_replayable(pipeline, what)
    return _continued(workspace, kind_of(pipeline))


def _continued(workspace: Workspace, kind: SourceKind[Any, Any]) -> ContinuedStream[Any]:
    match kind:
        case FileKind():
            from etl.runs.kinds.files import FileStream

            return FileStream(workspace=workspace, kind=kind)
        case KafkaKind():
            from etl.runs.kinds.topics import TopicStream

            return TopicStream(workspace=workspace, kind=kind)
        case _:
            raise AssertionError(f"no stream is known for a pipeline of {type(kind).__name__}")
