"""Maps a column to a property of a contract, and a property to a column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.pipeline.ddl import ddl_name, unknown_types

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

SPARK_TYPE = "sparkType"  # the custom property of a type that the others do not tell whole
LOGICAL: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # by Spark's name of the type, with its options
    "boolean": ("boolean", {}),
    "byte": ("integer", {"format": "i8"}),
    "short": ("integer", {"format": "i16"}),
    "integer": ("integer", {"format": "i32"}),
    "long": ("integer", {"format": "i64"}),
    "float": ("number", {"format": "f32"}),
    "double": ("number", {"format": "f64"}),
    "decimal": ("number", {}),
    "binary": ("string", {"format": "binary"}),
    "date": ("date", {}),
    "timestamp": ("timestamp", {"timezone": True}),
    "timestamp_ntz": ("timestamp", {"timezone": False}),
    "struct": ("object", {}),
    "map": ("object", {}),
    "variant": ("object", {}),
    "array": ("array", {}),
}
PHYSICAL = {  # types of databases, without their size and zone; of DDL, what they are here
    **dict.fromkeys(("boolean", "bool"), "boolean"),
    **dict.fromkeys(("tinyint", "byteint"), "tinyint"),
    **dict.fromkeys(("smallint", "int2", "short"), "smallint"),
    **dict.fromkeys(("int", "integer", "int4", "int32", "serial"), "int"),
    **dict.fromkeys(("bigint", "int8", "int64", "long", "bigserial"), "bigint"),
    **dict.fromkeys(("real", "float4", "float32"), "float"),
    **dict.fromkeys(("double precision", "double", "float8", "float64", "float"), "double"),
    **dict.fromkeys(("numeric", "decimal", "number", "dec"), "decimal"),
    **dict.fromkeys(("text", "string", "varchar", "char", "character varying", "character"), "string"),
    **dict.fromkeys(("nvarchar", "varchar2", "clob", "uuid", "citext", "json", "jsonb", "xml"), "string"),
    **dict.fromkeys(("bytea", "binary", "varbinary", "blob", "bytes"), "binary"),
    "date": "date",
    **dict.fromkeys(("timestamptz", "timestamp_tz", "timestamp_ltz"), "timestamp"),
    **dict.fromkeys(("timestamp_ntz", "datetime"), "timestamp_ntz"),
}
_SIZED = re.compile(
    r"([a-z][a-z0-9_ ]*?)\s*(?:\((\d+)\s*(?:,\s*(\d+)\s*)?\))?(?:\s+(with|without) time zone)?"
)
_BY_FORMAT = {
    "i8": "tinyint",
    "i16": "smallint",
    "i32": "int",
    "i64": "bigint",
    "f32": "float",
    "f64": "double",
}


@dataclass(frozen=True, kw_only=True)
class ContractColumn:
    """A column as a contract describes it."""

    name: str
    type: str  # Spark DDL
    description: str = ""
    doubt: str | None = None  # what a person is to look at


@dataclass(frozen=True, kw_only=True)
class ContractField:
    """A column that a pipeline puts out."""

    name: str
    type: DataType  # Spark's
    stored: str = ""  # its type in PostgreSQL; empty: within a nested column
    description: str = ""


def ddl(kind: DataType) -> str:
    """Write a type of Spark's in DDL, with the names of its members quoted where they need it."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        members = (f"{ddl_name(field.name)}: {ddl(field.dataType)}" for field in kind.fields)
        return f"struct<{', '.join(members)}>"
    if isinstance(kind, types.ArrayType):
        return f"array<{ddl(kind.elementType)}>"
    if isinstance(kind, types.MapType):
        return f"map<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
    return kind.simpleString()


def property_of(field: ContractField) -> dict[str, Any]:
    """Describe a column as a property of a contract."""
    described = {"name": field.name, **_typed(field.type, field.stored)}
    if field.description:
        described["description"] = field.description
    if field.stored and column_of(described).type != ddl(field.type):
        described["customProperties"] = [{"property": SPARK_TYPE, "value": ddl(field.type)}]
    return described


def _typed(kind: DataType, stored: str = "") -> dict[str, Any]:
    from pyspark.sql import types

    logical, options = LOGICAL.get(kind.typeName(), ("string", {}))
    typed: dict[str, Any] = {"logicalType": logical}
    if stored:
        typed["physicalType"] = stored
    if options:
        typed["logicalTypeOptions"] = dict(options)
    if isinstance(kind, types.StructType):
        members = (ContractField(name=field.name, type=field.dataType) for field in kind.fields)
        typed["properties"] = [property_of(member) for member in members]
    elif isinstance(kind, types.ArrayType):
        typed["items"] = _typed(kind.elementType)
    return typed


def column_of(described: Mapping[str, Any]) -> ContractColumn:
    """Read a property of a contract as a column."""
    kind, doubt = _type_of(described)
    return ContractColumn(
        name=str(described.get("physicalName") or described["name"]),
        type=kind,
        description=str(described.get("description") or "").strip(),
        doubt=doubt,
    )


def _type_of(described: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the property's type in DDL, and what is doubtful: by Spark's name, its members, or the database's name."""
    spark = next(
        (
            str(one.get("value"))
            for one in described.get("customProperties") or ()
            if one.get("property") == SPARK_TYPE
        ),
        "",
    )
    if spark and not list(unknown_types(f"x {spark}")):
        return spark, None
    if described.get("properties") or described.get("items"):
        return _nested(described)
    if physical := str(described.get("physicalType") or "").strip().lower():
        if (found := _of_database(physical, described)) is not None:
            return found
        if "<" in physical and not list(unknown_types(f"x {physical}")):
            return str(described["physicalType"]).strip(), None
    kind, doubt = _logical(described)
    return kind, doubt if not physical else f"its physicalType {physical!r} is not known here"


def _nested(described: Mapping[str, Any]) -> tuple[str, str | None]:
    if items := described.get("items"):
        kind, doubt = _type_of(items)
        return f"array<{kind}>", doubt
    members = [column_of(one) for one in described["properties"]]
    doubts = [f"in {one.name}, {one.doubt}" for one in members if one.doubt]
    written = ", ".join(f"{ddl_name(one.name)}: {one.type}" for one in members)
    return f"struct<{written}>", "; ".join(doubts) or None


def _of_database(physical: str, described: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Return what a type of a database is in DDL, and what is doubtful; None for one that is not known."""
    match = _SIZED.fullmatch(physical)
    if match is None:
        return None
    word, size, scale, zone = match.groups()
    if word == "timestamp":
        return _moment(zone, described)
    kind = PHYSICAL.get(word)
    if kind != "decimal":
        return None if kind is None else (kind, None)
    if size is not None and int(size) <= 38:
        return f"decimal({size},{scale or 0})", None
    if described.get("logicalType") == "integer":
        return "decimal(38,0)", None
    return "decimal(38,9)", f"the contract has no precision of {physical!r} that fits into 38 digits"


def _moment(zone: str | None, described: Mapping[str, Any]) -> tuple[str, str | None]:
    told = (described.get("logicalTypeOptions") or {}).get("timezone")
    if zone or told is not None:
        return ("timestamp" if zone == "with" or (zone is None and told) else "timestamp_ntz"), None
    return "timestamp", "the contract does not say whether it has a zone: timestamp_ntz is one without"


def _logical(described: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the DDL of a logical type alone, and what is doubtful about it."""
    logical = described.get("logicalType")
    size = str((described.get("logicalTypeOptions") or {}).get("format") or "")
    if logical == "timestamp":
        return _moment(None, described)
    if logical == "integer":
        return _BY_FORMAT.get(size, "bigint"), None
    if logical == "number":
        doubt = None if size in _BY_FORMAT else "an amount of money is a decimal(p,s)"
        return _BY_FORMAT.get(size, "double"), doubt
    if logical in ("boolean", "date"):
        return str(logical), None
    if logical == "string":
        return ("binary" if size == "binary" else "string"), None
    why = {
        None: "the contract has no type of it",
        "time": "no column is a time of day",
        "object": "the contract does not name its members: it is read as text",
        "array": "the contract does not say what it has: it is read as text",
    }
    return "string", why.get(logical, f"its logicalType {logical!r} is not known here")
