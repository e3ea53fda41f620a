"""Names and nests columns of Spark's frames, and reads stored Parquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType


# Spark's own formats end at milliseconds.
NESTED = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}

_NESTED_TYPE = "sluice.nested"  # of a column's metadata: the type that its JSON text is of


def quoted(name: str) -> str:
    """Quote a column's name for Spark's expressions, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def output(frame: DataFrame) -> DataFrame:
    """Return the transform's output with nested columns as JSON text, the same for both sinks."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    def plain(name: str, kind: Any) -> Column:
        column = F.col(quoted(name))
        nested = isinstance(kind, ArrayType | MapType | StructType | VariantType)
        metadata = {_NESTED_TYPE: kind.json()}
        return F.to_json(column, NESTED).alias(name, metadata=metadata) if nested else column

    return frame.select(*(plain(field.name, field.dataType) for field in frame.schema.fields))


def nested_fields(schema: StructType) -> list[StructField]:
    """Return those columns of an output that are JSON text, each with the type that `output` made text of."""
    from pyspark.sql.types import StructField

    return [
        StructField.fromJson({"name": field.name, "type": json.loads(kind), "nullable": True, "metadata": {}})
        for field in schema.fields
        if (kind := field.metadata.get(_NESTED_TYPE)) is not None
    ]


def parquet(spark: SparkSession, uris: Sequence[str], schema: StructType) -> DataFrame:
    """Read the rows of these objects, with the columns of `schema`; no objects have no rows."""
    if not uris:
        return spark.createDataFrame([], schema)
    paths = [uri.replace("s3://", "s3a://", 1) for uri in uris]
    # recursiveFileLookup keeps Spark from making columns of the folders' names
    return spark.read.schema(schema).option("recursiveFileLookup", "true").parquet(*paths)
