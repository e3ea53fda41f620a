"""The models that a pipeline's transform scores rows with: PostgreSQL knows their versions, the lake has them.

A version is written once. What is loaded is the version in force, and only the bytes that were trained.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg2
import pyarrow as pa
from psycopg2.extras import Json

from etl import forest
from etl.database import constraint_of, migrate, row, run, session
from etl.declaration import Pipeline
from etl.errors import Busy, NeedsPerson, ServiceAway, SetupError
from etl.inputs import LOOKUP_SOURCE, Input
from etl.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import Column

FOLDER = "_models"  # on the lake, where no table can be: their names begin with a letter


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
        """What is recorded with each batch that it scored."""
        return Input(
            path=f"{self.name} version {self.version}",
            uri=self.location,
            size=self.bytes,
            mtime_ms=int(self.made_at.timestamp() * 1000),
            etag=self.digest,
            source=LOOKUP_SOURCE,
        )


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """What a transform takes for a model: the version that was in force when the batch began."""

    version: int
    threshold: float  # the score above which a row counts as an anomaly
    features: tuple[str, ...]  # as declared
    content: bytes = field(repr=False)

    def score(self, *columns: str | Column) -> Column:
        """From 0 to 1, the more of an anomaly the higher; null where a value is null, NaN or beyond what a float holds.

        One column for each feature, in their order.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.functions import arrow_udf

        if len(columns) != len(self.features):
            raise ValueError(f"score takes {len(self.features)} columns: {', '.join(self.features)}")
        content = self.content

        def scored(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
            return forest.scored(content, batches)

        values = (F.col(one) if isinstance(one, str) else one for one in columns)
        named = (one.cast("double").alias(f"f{number}") for number, one in enumerate(values))
        declare: Any = arrow_udf  # which goes by the hints of types
        found: Column = declare(scored, "double")(F.struct(*named))
        return found


@dataclass(frozen=True, kw_only=True)
class Models:
    """The versions of all pipelines' models."""

    dsn: str
    lake: Lake

    def current(self, pipeline: str, name: str) -> Version | None:
        """The version in force; None: it was not trained yet."""
        with session(self.dsn) as cursor:
            found = row(run(cursor, "models", "current", {"pipeline": pipeline, "name": name}))
        return None if found is None else Version(pipeline=pipeline, name=name, **found)

    def required(self, pipeline: str, name: str) -> Version:
        """The version in force, or SetupError."""
        found = self.current(pipeline, name)
        if found is None:
            seen = f"Pipeline {pipeline} scores rows with model {name!r}, which was not trained yet"
            raise SetupError(seen, remedy=f"`sluice train {pipeline}`, then run again")
        return found

    def scorer(self, pipeline: Pipeline, name: str) -> tuple[Scorer, Version]:
        """The version in force, loaded."""
        migrate(self.dsn)
        found = self.required(pipeline.name, name)
        features, learned = pipeline.models[name].features, tuple(found.report["settings"]["features"])
        if features != learned:
            raise SetupError(
                f"Model {name!r} of pipeline {pipeline.name} is declared with {', '.join(features)}, and its version"
                f" {found.version} learned from {', '.join(learned)}",
                remedy=f"`sluice train {pipeline.name}`, then run again",
            )
        scorer = Scorer(
            version=found.version, threshold=found.threshold, features=features, content=self.content(found)
        )
        return scorer, found

    def content(self, version: Version) -> bytes:
        """The model's bytes; NeedsPerson where they are not those that were trained."""
        what = f"Version {version.version} of model {version.name!r} of pipeline {version.pipeline}"
        remedy = f"bring {version.location} back, or `sluice train {version.pipeline}` for a new version"
        try:
            with self.lake.open(version.location) as source:
                content = bytes(source.read())
        except FileNotFoundError as error:
            raise NeedsPerson(f"{what} is gone from the lake", remedy=remedy) from error
        except OSError as error:
            raise ServiceAway(f"{what} can't be read: {error}", remedy="run again") from error
        found = hashlib.sha256(content).hexdigest()
        if found != version.digest:
            seen = f"{what} is not what was trained: its SHA-256 is {found}, and was {version.digest}"
            raise NeedsPerson(seen, remedy=remedy)
        forest.refuse_other(content, f"{what} ({version.location})")
        return content

    def add(self, content: bytes, report: Mapping[str, Any], *, who: str) -> str:
        """Write a version, as a whole: its objects first, then its row, from which on it is in force; where it is."""
        pipeline, name, version = report["pipeline"], report["model"], report["version"]
        digest = hashlib.sha256(content).hexdigest()
        folder = f"{self.lake.root}/{FOLDER}/{pipeline}/{name}/{version}-{digest[:12]}"
        location = f"{folder}/model.onnx"
        self.lake.write_bytes(location, content)
        self.lake.write_text(f"{folder}/report.json", json.dumps(report, indent=2))
        known = {"location": location, "bytes": len(content), "digest": digest, "report": Json(report)}
        try:
            with session(self.dsn) as cursor:
                run(cursor, "models", "add", {**report, **known, "made_by": who})
        except psycopg2.IntegrityError as error:
            if constraint_of(error) is None:
                raise
            seen = f"Version {version} of model {name!r} of pipeline {pipeline} was made by another meanwhile"
            raise Busy(seen, remedy=f"`sluice train {pipeline}` again, if a newer one is wanted") from error
        return location
