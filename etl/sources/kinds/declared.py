"""Chooses the kind of a declared source: nothing else asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from etl.common.errors import SetupError
from etl.pipeline import Files, Kafka, Pipeline, Rate, Socket
from etl.pipeline.replayability import require_replayable
from etl.sources.kinds.base import SourceKind
from etl.sources.kinds.files import FileKind
from etl.sources.kinds.live import RateKind, SocketKind
from etl.sources.kinds.topics import KafkaKind
from etl.spark.checkpoint.reader import Checkpoint

if TYPE_CHECKING:
    from etl.sources.base import Source

Declared = TypeVar("Declared", Files, Kafka)


def kind_of(pipeline: Pipeline) -> SourceKind[Source, Checkpoint]:
    """Return the kind of a pipeline's sources, which are all of one kind as the declaration's checks hold."""
    match pipeline.sources[0]:
        case Files():
            return FileKind(pipeline=pipeline, files=_all(pipeline, Files))
        case Kafka():
            return KafkaKind(pipeline=pipeline, declared=_all(pipeline, Kafka))
        case Rate() as rate:
            return RateKind(pipeline=pipeline, declared=rate)
        case Socket() as socket:
            return SocketKind(pipeline=pipeline, declared=socket)


def _all(pipeline: Pipeline, kind: type[Declared]) -> tuple[Declared, ...]:
    return tuple(one for one in pipeline.sources if isinstance(one, kind))


def require_files(pipeline: Pipeline, what: str) -> FileKind:
    """Return the kind of a pipeline of files; raise SetupError for any other, which `what` can't read."""
    require_replayable(pipeline, what)
    kind = kind_of(pipeline)
    if not isinstance(kind, FileKind):
        raise SetupError(
            f"Pipeline {pipeline.name} reads topics of Kafka, and {what} reads only landed files",
            remedy="docs/cookbook/kafka.md says what there is for topics",
        )
    return kind
