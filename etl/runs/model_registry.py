"""The models that score the rows of a pipeline's transform: PostgreSQL has their versions, the lake their content.

A version is written once. Only the version in force is loaded, and only the bytes that were trained.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2.extras import Json

from etl.common.database import constraint_of, row, transaction
from etl.common.errors import Busy, NeedsPerson, ServiceAway, SetupError
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.pipeline import Pipeline
from etl.sinks.lake.lake import Lake
from etl.sources.side_inputs import onnx_forest
from etl.sources.side_inputs.scorers import ModelScorer, Version

STATEMENTS = Statements(__name__)

FOLDER = "_models"  # on the lake, where no table can be: their names begin with a letter


@dataclass(frozen=True, kw_only=True)
class ModelRegistry:
    """The versions of all pipelines' models."""

    dsn: str
    lake: Lake

    def current(self, pipeline: str, name: str) -> Version | None:
        """Return the version of the model that is in force, or None if it was not trained yet."""
        with transaction(self.dsn) as cursor:
            record = row(STATEMENTS.execute(cursor, "current", pipeline=pipeline, name=name))
        return None if record is None else Version(pipeline=pipeline, name=name, **record)

    def required(self, pipeline: str, name: str) -> Version:
        """Return the version of the model that is in force; raise SetupError if it was not trained yet."""
        version = self.current(pipeline, name)
        if version is None:
            seen = f"Pipeline {pipeline} scores rows with model {name!r}, which was not trained yet"
            raise SetupError(seen, remedy=f"`sluice train {pipeline}`, then run again")
        return version

    def scorer(self, pipeline: Pipeline, name: str) -> tuple[ModelScorer, Version]:
        """Load the version in force; return its scorer and the version.

        Raises SetupError where the model was not trained yet, or learned from other features than are
        declared.
        """
        migrate(self.dsn)
        version = self.required(pipeline.name, name)
        features, learned = pipeline.models[name].features, tuple(version.report["settings"]["features"])
        if features != learned:
            raise SetupError(
                f"Model {name!r} of pipeline {pipeline.name} is declared with {', '.join(features)}, and its version"
                f" {version.version} learned from {', '.join(learned)}",
                remedy=f"`sluice train {pipeline.name}`, then run again",
            )
        scorer = ModelScorer(
            version=version.version,
            threshold=version.threshold,
            features=features,
            content=self.content(version),
        )
        return scorer, version

    def content(self, version: Version) -> bytes:
        """Read the model's bytes; raise NeedsPerson where they are gone or not those that were trained."""
        what = f"Version {version.version} of model {version.name!r} of pipeline {version.pipeline}"
        remedy = f"bring {version.location} back, or `sluice train {version.pipeline}` for a new version"
        try:
            with self.lake.open(version.location) as source:
                content = bytes(source.read())
        except FileNotFoundError as error:
            raise NeedsPerson(f"{what} is gone from the lake", remedy=remedy) from error
        except OSError as error:
            raise ServiceAway(f"{what} can't be read: {error}", remedy="run again") from error
        digest = hashlib.sha256(content).hexdigest()
        if digest != version.digest:
            seen = f"{what} is not what was trained: its SHA-256 is {digest}, and was {version.digest}"
            raise NeedsPerson(seen, remedy=remedy)
        onnx_forest.refuse_other(content, f"{what} ({version.location})")
        return content

    def add(self, content: bytes, report: Mapping[str, Any], *, who: str) -> str:
        """Write a version as a whole and return where it is.

        Its objects come first, then its row, from which on the version is in force. Raises Busy where another
        made this version meanwhile.
        """
        pipeline, name, version = report["pipeline"], report["model"], report["version"]
        digest = hashlib.sha256(content).hexdigest()
        folder = f"{self.lake.root}/{FOLDER}/{pipeline}/{name}/{version}-{digest[:12]}"
        location = f"{folder}/model.onnx"
        self.lake.write_bytes(location, content)
        self.lake.write_text(f"{folder}/report.json", json.dumps(report, indent=2))
        try:
            with transaction(self.dsn) as cursor:
                STATEMENTS.execute(
                    cursor,
                    "add",
                    pipeline=pipeline,
                    model=name,
                    version=version,
                    location=location,
                    bytes=len(content),
                    digest=digest,
                    threshold=report["threshold"],
                    trained_on=report["trained_on"],
                    metadata_location=report["metadata_location"],
                    deliveries=report["deliveries"],
                    rows_there=report["rows_there"],
                    rows_fitted=report["rows_fitted"],
                    report=Json(report),
                    made_by=who,
                )
        except psycopg2.IntegrityError as error:
            if constraint_of(error) is None:
                raise
            seen = f"Version {version} of model {name!r} of pipeline {pipeline} was made by another meanwhile"
            raise Busy(seen, remedy=f"`sluice train {pipeline}` again, if a newer one is wanted") from error
        return location
