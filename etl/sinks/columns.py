"""The column types that both sinks can hold, as one Arrow schema.

The transform's output is first cast to these types, so that PostgreSQL, Parquet and the checksums of `audit` have the
same values.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from etl.common.errors import TableRefused
from etl.common.record_columns import is_own

# What names the delivery that a row came with, in both sinks; PostgreSQL has the first as uuid.
IDENTITY = pa.schema({"_stream_id": pa.string(), "_batch_id": pa.int64(), "_delivery_id": pa.int64()})
SYSTEM_COLUMNS = tuple(IDENTITY.names)
DELIVERY = SYSTEM_COLUMNS[2]
# PostgreSQL's own; names are quoted, so that only these exact ones are taken
POSTGRES_COLUMNS = ("cmax", "cmin", "ctid", "tableoid", "xmax", "xmin")


class RowIdentity(NamedTuple):
    """The delivery that a row came with, as the row itself says in the columns of IDENTITY, in their order."""

    stream_id: str
    batch_id: int
    delivery_id: int


_WORDS = {
    pa.bool_(): "a boolean",
    pa.int32(): "an integer",
    pa.int64(): "a bigint",
    pa.float32(): "a float",
    pa.float64(): "a double",
    pa.string(): "a text",
    pa.binary(): "binary",
    pa.date32(): "a date",
    pa.timestamp("us"): "a timestamp without a zone",
    pa.timestamp("us", tz="UTC"): "a timestamp",
    pa.null(): "null in all rows",
}


def in_words(kind: pa.DataType) -> str:
    """Say what a column is: `an integer`, `a list of a text`; of other types Arrow's own word."""
    if pa.types.is_decimal128(kind):
        return f"a decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"a list of {in_words(kind.value_type)}"
    if pa.types.is_map(kind):
        return f"a map from {in_words(kind.key_type)} to {in_words(kind.item_type)}"
    if pa.types.is_struct(kind):
        return f"a struct of {', '.join(field.name for field in kind)}"
    return _WORDS.get(common_type(kind) or kind, str(kind))


def common_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that holds every value of `kind` in both sinks, or None where there is none."""
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if kind in (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64()):
        return kind
    if kind in (pa.string(), pa.binary(), pa.date32()) or pa.types.is_decimal128(kind):
        return kind
    return None


def common_schema(output: pa.Schema, *, pipeline: str) -> pa.Schema:
    """Return the transform's `output` in the common types, every column nullable.

    Raises TableRefused, naming every column that neither sink could take.
    """
    problems = []
    fields = []
    for field in output:
        kind = common_type(field.type)
        if kind is None:
            problems.append(f"{field.name} is {in_words(field.type)}, which both sinks do not hold alike")
        elif not field.name:
            problems.append("a column has an empty name")
        elif field.name in POSTGRES_COLUMNS:
            problems.append(f"{field.name}: every table of PostgreSQL has a system column of this name")
        elif is_own(field.name):
            problems.append(f"{field.name}: names that start with _ are kept for Sluice's own columns")
        elif "%" in field.name:
            problems.append(f"{field.name}: a percent sign can't be in a column's name")
        elif len(field.name.encode()) > 63:
            problems.append(f"{field.name}: longer than PostgreSQL's 63 bytes")
        else:
            fields.append(pa.field(field.name, kind, nullable=True))
    names = [field.name.lower() for field in output]
    problems += [f"{name}: twice, ignoring case" for name in sorted({n for n in names if names.count(n) > 1})]
    if problems:
        raise TableRefused(
            f"The output of pipeline {pipeline} can't be delivered: " + "; ".join(problems),
            remedy="change these columns in the pipeline's transform",
        )
    return pa.schema(fields)
