"""Opens a pipeline's sources, whatever their kind, with the lookups and models that its transform takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.common.settings import Settings
from etl.pipeline import Pipeline
from etl.sources.base import Source
from etl.sources.kinds.base import AnySource, SourceKind
from etl.sources.kinds.declared import kind_of
from etl.sources.schemas import stream_fields
from etl.sources.side_inputs.lookups import read_lookup
from etl.sources.side_inputs.scorers import ModelVersions
from etl.spark.checkpoint.reader import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_source(
    spark: SparkSession,
    pipeline: Pipeline,
    settings: Settings,
    *,
    models: ModelVersions | None = None,
    stream: bool = True,
) -> Source:
    """Open a pipeline's source, having checked what it takes; see `open_kind`, which is given the kind."""
    return open_kind(spark, kind_of(pipeline), settings, models=models, stream=stream)


def open_kind(
    spark: SparkSession,
    kind: SourceKind[AnySource, Checkpoint],
    settings: Settings,
    *,
    models: ModelVersions | None = None,
    stream: bool = True,
) -> AnySource:
    """Open a pipeline's source, having checked schemas, lookups, `models` and, for a `stream`, the folders.

    No input is read yet.
    """
    pipeline = kind.pipeline
    fields = stream_fields(pipeline)
    paths = kind.listed(settings.landing) if stream else ()
    lookups, versions = {}, {}
    for name in pipeline.lookups:
        lookups[name], versions[name] = read_lookup(spark, pipeline, name, settings.landing, settings.bounds)
    scorers = {}
    for name in pipeline.models:
        assert models is not None
        scorers[name], scored_by = models.scorer(pipeline, name)
        versions[name] = (scored_by.input,)
    return kind.source(
        settings,
        paths,
        pipeline=pipeline,
        spark=spark,
        landing=settings.landing,
        bounds=settings.bounds,
        fields=fields,
        lookups=lookups,
        lookup_versions=versions,
        scorers=scorers,
        models=models,
    )
