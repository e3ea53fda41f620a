"""Reads landed files by a stream, as a delivery does, and takes apart what each batch gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from etl.common.record_bounds import DEFAULT, Bounds
from etl.common.settings import Settings
from etl.pipeline import Append, Files, Lookup, Pipeline, Socket
from etl.sources.files import FileSource
from etl.sources.open import open_source
from etl.spark.checkpoint.files import FileCheckpoint
from etl.spark.checkpoint.reader import open_checkpoint
from etl.spark.observation import observed

SCHEMA = (
    "id int, n bigint, d double, s string, b boolean, t timestamp, dt date, dec decimal(5,2),"
    " st struct<a:int>, ar array<int>, sm smallint"
)


@dataclass(frozen=True, kw_only=True)
class Landing:
    """What the source needs of the settings."""

    landing: str
    bounds: Bounds


def settings(root: Path, bounds: Bounds = DEFAULT) -> Settings:
    return cast("Settings", Landing(landing=str(root), bounds=bounds))


def unchanged(df: DataFrame, **lookups: DataFrame) -> DataFrame:
    return df


def pipeline(*sources: Files | Socket, schema: str = SCHEMA, **lookups: Lookup) -> Pipeline:
    return Pipeline(
        name="events", sources=sources, schema=schema, transform=unchanged, sink=Append(), lookups=lookups
    )


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@dataclass(kw_only=True)
class Read:
    """What the batches of one run gave."""

    rows: list[dict[str, Any]]
    counted: list[dict[str, Any]]
    malformed: list[tuple[str, str]]
    source: FileSource

    @property
    def raw(self) -> list[str]:
        return [raw for raw, _ in self.malformed]


def counts(job: DataFrame) -> dict[str, Any]:
    return {name: count for name, count in observed(job, "source").items() if name != "reports"}


def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def read(
    spark: SparkSession, declared: Pipeline, root: Path, checkpoint: Path, bounds: Bounds = DEFAULT
) -> Read:
    """Run the stream as a delivery does: one Arrow job a batch, then the malformed records' own."""
    source = open_source(spark, declared, settings(root, bounds))
    found = Read(rows=[], counted=[], malformed=[], source=source)

    def batch(frame: DataFrame, number: int) -> None:
        derived = frame.mapInArrow(passed, frame.schema)
        found.rows += [row.asDict() for row in derived.collect()]
        found.counted.append(counts(derived))
        frame.mapInArrow(passed, frame.schema).collect()
        assert counts(derived) == found.counted[-1], "a job that is run again counts once"
        uris = [
            file.uri
            for file in open_checkpoint(
                str(checkpoint), FileCheckpoint, sources=len(declared.sources)
            ).inputs(number)
        ]
        found.malformed += [(row._raw, row._source_path) for row in source.malformed(uris).collect()]

    writer = source.streamed.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return found
