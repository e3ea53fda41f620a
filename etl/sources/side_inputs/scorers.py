"""The model of a batch: a version that was trained, and the scorer made from its content."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from etl.common.wording import pluralize
from etl.ledger.inputs import LOOKUP_SOURCE, Input
from etl.pipeline import Pipeline
from etl.sources.side_inputs import onnx_forest

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True, kw_only=True)
class Version:
    """A trained model."""

    pipeline: str
    name: str
    version: int  # from 1
    location: str  # s3:// URI
    bytes: int
    digest: str  # SHA-256
    threshold: float  # the score above which a row counts as an anomaly
    metadata_location: str  # of the table it learned from
    report: Mapping[str, Any]  # of the evaluation
    made_at: dt.datetime

    @property
    def input(self) -> Input:
        """Return what is recorded with each batch that the version scored."""
        return Input(
            path=f"{self.name} version {self.version}",
            uri=self.location,
            size=self.bytes,
            mtime_ms=int(self.made_at.timestamp() * 1000),
            etag=self.digest,
            source=LOOKUP_SOURCE,
        )


@dataclass(frozen=True, kw_only=True)
class ModelScorer:
    """What a transform takes for a model: the version that was in force when the batch began."""

    version: int
    threshold: float  # the score above which a row counts as an anomaly
    features: tuple[str, ...]  # as declared
    content: bytes = field(repr=False)

    def score(self, *columns: str | Column) -> Column:
        """Return a column of scores from 0 to 1, the more of an anomaly the higher.

        A score is null where a value is null, NaN or beyond what a float holds. There is to be one column for
        each feature, in their order; raises ValueError for another number.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.functions import arrow_udf

        if len(columns) != len(self.features):
            raise ValueError(
                f"score takes {pluralize(len(self.features), 'column')}: {', '.join(self.features)}"
            )
        content = self.content

        def scored(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
            return onnx_forest.scored(content, batches)

        values = (F.col(one) if isinstance(one, str) else one for one in columns)
        named = (one.cast("double").alias(f"f{number}") for number, one in enumerate(values))
        declare: Any = arrow_udf  # which goes by the hints of types
        column: Column = declare(scored, "double")(F.struct(*named))
        return column


class ModelVersions(Protocol):
    """Tells which version of a model is in force, and loads it."""

    def required(self, pipeline: str, name: str) -> Version:
        """Return the version in force; raise SetupError where the model was not trained yet."""
        ...

    def scorer(self, pipeline: Pipeline, name: str) -> tuple[ModelScorer, Version]:
        """Load the version in force; raise SetupError where it learned from other features than are declared."""
        ...
