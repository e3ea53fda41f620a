"""Opens a pipeline's source: files, topics, or what can't be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.common.settings import Settings
from etl.pipeline import Pipeline
from etl.sources.files import Source
from etl.sources.landing import listed_path
from etl.sources.schemas import stream_fields
from etl.sources.side_inputs.lookups import read_lookup
from etl.sources.side_inputs.scorers import ModelVersions

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
    """Open a pipeline's source, having checked schemas, lookups, `models` and, for a `stream`, the folders.

    No input is read yet.
    """
    where = f"pipeline {pipeline.name}"
    fields = stream_fields(pipeline)
    paths = [listed_path(files, settings.landing, where) for files in pipeline.files] if stream else []
    lookups, versions = {}, {}
    for name in pipeline.lookups:
        lookups[name], versions[name] = read_lookup(spark, pipeline, name, settings.landing)
    scorers = {}
    for name in pipeline.models:
        assert models is not None
        scorers[name], scored_by = models.scorer(pipeline, name)
        versions[name] = (scored_by.input,)
    source = Source(
        pipeline=pipeline,
        spark=spark,
        landing=settings.landing,
        fields=fields,
        paths=paths,
        lookups=lookups,
        lookup_versions=versions,
        scorers=scorers,
        models=models,
    )
    if not pipeline.replayable:
        from etl.sources.live import LiveSource

        return LiveSource(**vars(source))
    if not pipeline.topics:
        return source
    from etl.sources.kafka.cluster import open_cluster
    from etl.sources.kafka.source import KafkaSource

    return KafkaSource(**vars(source), cluster=open_cluster(spark, settings, pipeline.name))
