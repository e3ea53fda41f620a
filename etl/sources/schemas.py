"""The declared schemas of a pipeline's streams as Spark has them; refuses types that its sources can't be read as."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from etl.common.errors import SetupError
from etl.common.record_columns import UNKNOWN
from etl.pipeline import Pipeline
from etl.sources.csv_records import values as csv_values
from etl.sources.csv_records.dialect import Dialect
from etl.sources.json_records import values as json_values
from etl.sources.parsing import arrow_schema, ddl_fields

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def stream_fields(pipeline: Pipeline) -> dict[str | None, StructType]:
    """Return the declared schema of each stream. Raises SetupError for what can't be read of its sources."""
    fields = {
        name: ddl_fields(kind.schema, f"pipeline {pipeline.name}: {field_of('schema', name)}", pipeline.file)
        for name, kind in pipeline.all_streams.items()
    }
    _refuse_timeless(pipeline, fields)
    _refuse_unreadable(pipeline, fields)
    return (
        {name: _with_unknown(one) for name, one in fields.items()} if pipeline.unknown == "keep" else fields
    )


def _with_unknown(fields: StructType) -> StructType:
    """Add the column that takes what the others do not name."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*fields.fields, StructField(UNKNOWN, StringType())])


def field_of(field: str, stream: str | None) -> str:
    """Name a stream's field as a declaration calls it."""
    return field if stream is None else f"streams[{stream!r}].{field}"


def _refuse_timeless(pipeline: Pipeline, fields: Mapping[str | None, StructType]) -> None:
    from pyspark.sql.types import TimestampType

    for name, kind in pipeline.all_streams.items():
        moments = [one.name for one in fields[name].fields if isinstance(one.dataType, TimestampType)]
        columns = [("late", kind.late)] if kind.late is not None else []
        for column, bound in kind.not_after.items():
            columns += [("not_after", one) for one in (column, bound) if isinstance(one, str)]
        for field, column in columns:
            if column not in moments:
                raise SetupError(
                    f"Pipeline {pipeline.name}: {field_of(field, name)}: {column!r} is no timestamp column of its schema",
                    remedy=f"name one of {', '.join(moments)}"
                    if moments
                    else "declare a column as timestamp",
                )


def _refuse_unreadable(pipeline: Pipeline, fields: Mapping[str | None, StructType]) -> None:
    """Raise SetupError for columns of types that a source's format has no values of."""
    for read in pipeline.sources:
        schema = fields[read.stream]
        unread = _unread(schema, _CONVERTERS.get(read.kind))
        if unread:
            raise SetupError(
                f"Pipeline {pipeline.name}: {', '.join(unread)} can't be read from {read.kind.upper()} ({read.named}):"
                " it has no values of such a type",
                remedy="declare string, and convert it in the transform"
                + (" (from_json)" if read.kind == "csv" else ""),
            )


def _unread(schema: StructType, converter: Callable[[pa.DataType], object] | None) -> list[str]:
    if converter is None:
        return []
    return [one.name for one in arrow_schema(schema) if converter(one.type) is None]


_CONVERTERS: Mapping[str, Callable[[pa.DataType], object]] = {
    "csv": lambda kind: csv_values.converter(kind, Dialect()),
    "json": json_values.converter,
    "json-array": json_values.converter,
}
