"""The schema of our Iceberg tables: types, field ids, partitions, and how it may change."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from etl.common.record_columns import is_own
from etl.pipeline import Partition
from etl.sinks.columns import IDENTITY
from etl.sinks.evolution import Kind, SchemaDifference, difference

FIRST_FIELD_ID = 1
PARTITION_FIELD_ID = 1000
_TYPES: dict[pa.DataType, IcebergType] = {
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
}


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Return the table's schema: `columns`, then the three that name the delivery."""
    named = [(field.name, field.type) for field in (*columns, *IDENTITY)]
    after = FIRST_FIELD_ID + len(named)
    return Schema(
        *(
            NestedField(field_id=number, name=name, field_type=_iceberg_type(kind, after), required=False)
            for number, (name, kind) in enumerate(named, FIRST_FIELD_ID)
        )
    )


def _iceberg_type(kind: pa.DataType, element_id: int) -> IcebergType:
    if pa.types.is_decimal128(kind):
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_list(kind):  # only the quarantine's reasons: one list a table
        return ListType(element_id=element_id, element_type=StringType(), element_required=False)
    return _TYPES[kind]


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema that Parquet files are written with: Iceberg's ids in the fields' metadata."""
    arrow: dict[IcebergType, pa.DataType] = {iceberg: kind for kind, iceberg in _TYPES.items()}

    def field(nested: NestedField) -> pa.Field:
        kind = nested.field_type
        if isinstance(kind, DecimalType):
            arrow_type: pa.DataType = pa.decimal128(kind.precision, kind.scale)
        elif isinstance(kind, ListType):
            arrow_type = pa.list_(pa.field("element", pa.string(), metadata=_id(kind.element_id)))
        else:
            arrow_type = arrow[kind]
        return pa.field(nested.name, arrow_type, metadata=_id(nested.field_id))

    return pa.schema([field(nested) for nested in schema.fields])


def _id(number: int) -> dict[str, str]:
    return {"PARQUET:field_id": str(number)}


def partition_spec(partition: Partition | None, schema: Schema) -> PartitionSpec:
    """Return Iceberg's partition spec; its field is named as Iceberg's own writers do: <column>_day."""
    if partition is None:
        return UNPARTITIONED_PARTITION_SPEC
    suffix = "" if partition.kind == "identity" else f"_{partition.kind}"
    return PartitionSpec(
        PartitionField(
            source_id=schema.find_field(partition.column).field_id,
            field_id=PARTITION_FIELD_ID,
            transform=parse_transform(partition.kind),
            name=f"{partition.column}{suffix}",
        )
    )


def difference_of(existing: Schema, wanted: pa.Schema | Schema) -> SchemaDifference:
    """Return how a table of the schema `existing` differs from `wanted`."""

    def kinds(of: Schema | pa.Schema) -> dict[str, Kind]:
        arrow = arrow_schema(of) if isinstance(of, Schema) else of
        return {field.name: "list" if pa.types.is_list(field.type) else field.type for field in arrow}

    return difference(kinds(existing), kinds(wanted), lambda kind: str(_iceberg_type(kind, 0)))


def evolved(update: UpdateSchema, existing: Schema, wanted: pa.Schema) -> Schema:
    """Return `existing` with columns added and widened as in `wanted`; Sluice's own still end every row."""
    different = difference_of(existing, wanted)
    own = next(field.name for field in existing.fields if is_own(field.name))
    for name in different.added:
        update.add_column((name,), _iceberg_type(wanted.field(name).type, 0)).move_before((name,), (own,))
    for name in different.widened:
        update.update_column((name,), _iceberg_type(wanted.field(name).type, 0))
    return update._apply()


def partitioned_by(metadata: TableMetadata) -> tuple[str | None, str] | None:
    """Return the column and the kind that the table is partitioned by; None where it is not."""
    fields = metadata.spec().fields
    return (
        (metadata.schema().find_column_name(fields[0].source_id), str(fields[0].transform))
        if fields
        else None
    )
