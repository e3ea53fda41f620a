"""The kinds of sources that can't be read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.common.settings import Settings
from etl.pipeline import Rate, Socket
from etl.sources.kinds.base import SourceKind
from etl.spark.checkpoint.reader import Checkpoint

if TYPE_CHECKING:
    from etl.sources.live import RateSource, SocketSource


@dataclass(frozen=True, kw_only=True)
class LiveKind(SourceKind["RateSource | SocketSource", Checkpoint]):
    """A source that can't be read again: its checkpoint says nothing that the next connection could go by."""

    @property
    def checkpoint(self) -> type[Checkpoint]:
        return Checkpoint


@dataclass(frozen=True, kw_only=True)
class RateKind(LiveKind):
    """Rows that Spark makes, from 0 in each run."""

    declared: Rate

    def source(self, settings: Settings, paths: Sequence[str], **common: Any) -> RateSource:  # noqa: ARG002
        from etl.sources.live import RateSource

        return RateSource(**common, declared=self.declared)


@dataclass(frozen=True, kw_only=True)
class SocketKind(LiveKind):
    """Lines that a TCP server sends, to whoever is connected."""

    declared: Socket

    def source(self, settings: Settings, paths: Sequence[str], **common: Any) -> SocketSource:  # noqa: ARG002
        from etl.sources.live import SocketSource

        return SocketSource(**common, declared=self.declared)
