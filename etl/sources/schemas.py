"""The declared schemas of a pipeline's streams as Spark has them; refuses types that its sources can't be read as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from etl.common.errors import SetupError
from etl.pipeline import Pipeline
from etl.sources.parsing import ddl_fields

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def stream_fields(pipeline: Pipeline) -> dict[str | None, StructType]:
    """Return the declared schema of each stream. Raises SetupError for what can't be read of its sources."""
    fields = {
        name: ddl_fields(kind.schema, f"pipeline {pipeline.name}: {field_of('schema', name)}")
        for name, kind in pipeline.all_streams.items()
    }
    _refuse_timeless(pipeline, fields)
    _refuse_nested(pipeline, fields)
    return fields


def field_of(field: str, stream: str | None) -> str:
    """Name a stream's field as a declaration calls it."""
    return field if stream is None else f"streams[{stream!r}].{field}"


def _refuse_timeless(pipeline: Pipeline, fields: Mapping[str | None, StructType]) -> None:
    from pyspark.sql.types import TimestampType

    for name, kind in pipeline.all_streams.items():
        moments = [one.name for one in fields[name].fields if isinstance(one.dataType, TimestampType)]
        if kind.late is not None and kind.late not in moments:
            raise SetupError(
                f"Pipeline {pipeline.name}: {field_of('late', name)}={kind.late!r} is no timestamp column of its schema",
                remedy=f"name one of {', '.join(moments)}",
            )


def _refuse_nested(pipeline: Pipeline, fields: Mapping[str | None, StructType]) -> None:
    """Raise SetupError for nested columns that can't be read.

    CSV has no nested columns; within those of JSON Spark's parser takes 200 for a tinyint of -56 (4.3).
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    for read in pipeline.sources:
        nested = [
            one
            for one in fields[read.stream].fields
            if isinstance(one.dataType, ArrayType | MapType | StructType)
        ]
        if read.kind == "csv" and nested:
            raise SetupError(
                f"Pipeline {pipeline.name}: {', '.join(one.name for one in nested)} can't be read from CSV"
                f" ({read.named}): nested",
                remedy="declare them as string, and parse them in the transform (from_json)",
            )
        tiny = [one.name for one in nested if _has_tinyint(one.dataType)]
        if read.kind == "json" and tiny:
            raise SetupError(
                f"Pipeline {pipeline.name}: {', '.join(tiny)} can't be read from JSON ({read.named}): a tinyint within"
                " a nested column, where 200 would silently become -56",
                remedy="declare smallint there, and cast it in the transform",
            )


def _has_tinyint(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, ByteType, MapType, StructType

    if isinstance(kind, StructType):
        return any(_has_tinyint(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        return _has_tinyint(kind.keyType) or _has_tinyint(kind.valueType)
    return _has_tinyint(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, ByteType)
