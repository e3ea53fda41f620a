"""All checkpoints of a pipeline: one folder a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from etl.spark.checkpoint.reader import Checkpoint


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The checkpoints of one pipeline."""

    pipeline: str
    of: Callable[[str], Checkpoint]  # stream id -> its checkpoint, whether or not it is there
    present: Callable[[], Sequence[str]]  # the stream ids that have a folder
