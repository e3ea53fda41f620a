"""The contract of a kind of sources: what is known of them before they are opened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.ledger.inputs import Input
from etl.ledger.offsets import Range
from etl.pipeline import Pipeline
from etl.spark.checkpoint.reader import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.sources.base import Source

AnySource = TypeVar("AnySource", bound="Source", covariant=True)
AnyCheckpoint = TypeVar("AnyCheckpoint", bound=Checkpoint, covariant=True)


@dataclass(frozen=True, kw_only=True)
class SourceKind(ABC, Generic[AnySource, AnyCheckpoint]):
    """What is known of a pipeline's sources, all of one kind, before they are opened."""

    pipeline: Pipeline

    @property
    @abstractmethod
    def checkpoint(self) -> type[AnyCheckpoint]:
        """Return what tells what the batches of a checkpoint read."""

    def listed(self, landing: str) -> Sequence[str]:  # noqa: ARG002
        """Return the path that Spark lists for each source of files. Raises SetupError where a folder is not there."""
        return ()

    @abstractmethod
    def source(self, settings: Settings, paths: Sequence[str], **common: Any) -> AnySource:
        """Open the sources over the `paths` that are listed; `common` are the fields of every Source."""

    def foretold(self, inputs: Sequence[Input]) -> dict[str, str]:  # noqa: ARG002
        """Return the inputs that will not be read by today's declaration, each with the reason, without those not sure."""
        return {}

    def still_there(
        self,
        spark: SparkSession,  # noqa: ARG002
        settings: Settings,  # noqa: ARG002
        ranges: Sequence[Range],
    ) -> tuple[list[Range], list[str]]:
        """Return what there still is of ranges that were read, and a sentence for each that is not there as a whole."""
        return [], [f"{one.uri} is of a topic that is no longer declared" for one in ranges]

    def raise_read_error(self, errors: Sequence[BaseException], retry: str) -> None:
        """Raise an error that says why the source did not give what a batch was to read, where one of `errors` tells it.

        `retry` is the command to go on. What is wrong with single files is told by `Source.to_blame`.
        """

    def refuse_taken_twice(self, state: Sequence[str]) -> None:
        """Raise SetupError for a transform that takes its input more than once, where with this `state` that can't be."""
        if not state:
            raise SetupError(
                f"The transform of {self.pipeline.name} takes its input more than once: every file would be read as"
                " often, and a checkpoint could not be rebuilt",
                remedy="make several rows of one with explode",
            )
