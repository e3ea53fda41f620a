"""All checkpoints of a pipeline: one folder per stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from etl.spark.checkpoint.reader import Checkpoint

Kind = TypeVar("Kind", bound=Checkpoint, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Checkpoints(Generic[Kind]):
    """The checkpoints of one pipeline, all of one kind."""

    pipeline: str
    of: Callable[[str], Kind]  # stream id -> its checkpoint, whether or not it is there
    present: Callable[[], Sequence[str]]  # the stream ids that have a folder
