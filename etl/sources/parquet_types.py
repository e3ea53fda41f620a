"""Finds Parquet files whose columns have other types than declared, from their footers.

Spark's reader takes the bits of a whole number for another whole number, a date, a span of time or a decimal's digits,
without a message: an int32 of 300 becomes a tinyint of 44, a decimal of 12.34 a double of 1234 (Spark 4.3, tried).

And it refuses two kinds of columns that pandas writes, unless they are declared as what they are: timestamps of
nanoseconds, and columns without a value, which have no type. Such a file is read under the types that it has, and cast.

A file with columns that the schema does not name is read with these, where they are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from etl.common.outages import raising_service_errors
from etl.common.paths import REQUESTS, filesystem, to_path
from etl.common.record_columns import RESERVED, UNKNOWN
from etl.common.wording import visible
from etl.pipeline.ddl import ddl_name
from etl.sources.counts import Drift
from etl.spark.frames import quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_WHOLE = {pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()}  # each fits in an int
# Where one of these is declared, what a file may have of the types that are kept as a number or as the bytes of one.
_TAKEN: dict[str, set[pa.DataType]] = {
    "tinyint": {pa.int8()},
    "smallint": {pa.int8(), pa.int16(), pa.uint8()},
    "int": _WHOLE,
    "bigint": {*_WHOLE, pa.int64(), pa.uint32()},
    "float": {pa.float32()},
    "double": {*_WHOLE, pa.float32(), pa.float64()},
    "date": {pa.date32(), pa.date64()},
    "interval day to second": {pa.int64(), pa.duration("us")},
    "string": set(),
    "binary": set(),
}
# Where one of these is declared, Spark reads a column without a value, which is kept as an int32.
_NULLS = ("tinyint", "smallint", "int", "bigint", "double", "date")
# Where one of these is declared, what Spark reads timestamps of nanoseconds as: it has the types, not yet for all (4.3).
_IN_NANOSECONDS = {"timestamp": "timestamp_ltz(9)", "timestamp_ntz": "timestamp_ntz(9)"}
# What Spark reads the values of a file as they are as, where nobody has declared a type.
_DECLARED = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.uint8(): "smallint",
    pa.int16(): "smallint",
    pa.uint16(): "int",
    pa.int32(): "int",
    pa.uint32(): "bigint",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.null(): "string",
}
_LISTS = pa.ListType | pa.LargeListType | pa.FixedSizeListType


@dataclass(frozen=True)
class ReadAs:
    """The schema by which Spark reads a Parquet file that is not read by the declared one."""

    ddl: str
    kept: str = ""  # DDL of those of its columns that UNKNOWN takes


@dataclass(frozen=True, kw_only=True)
class Footers:
    """What the footers of Parquet files tell against the declared columns, by the files' URIs."""

    misfits: Mapping[str, str]  # why a file would be read with blurred values
    refused: Mapping[str, str]  # why Spark would refuse a file, of which the values are as declared
    read_as: Mapping[str, ReadAs]  # of such a file, and of one with columns that are kept
    lacking: Mapping[str, Sequence[str]]  # the declared columns that a file does not have
    drifts: Mapping[str, Drift]  # how a file's records drift from the declared columns


@dataclass(frozen=True, kw_only=True)
class _Footer:
    """One file's footer, or none of what is no Parquet file."""

    columns: Mapping[str, pa.DataType] = field(default_factory=dict)  # by their names in lower case
    names: Sequence[str] = ()  # as they are written
    metadata: pq.FileMetaData | None = None

    def lacking(self, declared: Sequence[str]) -> list[str]:
        """Return the declared columns that a file of columns does not have."""
        return [name for name in declared if self.columns and name.lower() not in self.columns]

    def drift(self, declared: Sequence[str]) -> Drift:
        """Count the records with a value in a column that is not declared, and those without a declared one."""
        metadata = self.metadata
        if metadata is None:
            return Drift()
        known = {name.lower() for name in declared}
        beyond = [name for name in self.names if name.lower() not in known]
        leaves = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)} if beyond else {}
        unknown = {name: metadata.num_rows - _nulls(metadata, leaves.get(name)) for name in beyond}
        missing = dict.fromkeys(self.lacking(declared), metadata.num_rows)
        return Drift(unknown=+Counter(unknown), missing=+Counter(missing))

    def unknown_ddl(self, unknown: Iterable[str]) -> str:
        """Return DDL of the columns among the unknown ones that can be kept: those that Spark reads as they are.

        Those of names that differ in case alone can't be told apart, and a name of Sluice's own is taken.
        """
        alike = Counter(name.lower() for name in self.names)
        single = (
            name for name in unknown if name and alike[name.lower()] == 1 and name.lower() not in RESERVED
        )
        types = ((name, declared_type(self.columns[name.lower()])) for name in single)
        return ", ".join(f"{quoted(name)} {kind}" for name, kind in types if kind is not None)


def _nulls(metadata: pq.FileMetaData, leaf: int | None) -> int:
    """Count the nulls of a column by its statistics; none where these do not tell, as of a nested one, which is no leaf."""
    if leaf is None:
        return 0
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    told = (group.column(leaf).statistics for group in groups)
    return sum(one.null_count for one in told if one is not None and one.has_null_count)


def footers(uris: Sequence[str], schema: StructType, *, keep: bool = True) -> Footers:
    """Look at the footers of files, which all lie in one store. What is no Parquet file is Spark's to tell.

    Where the schema has UNKNOWN, its column is made of what a file has beyond the others, if they are to `keep`. Raises
    ServiceAway where the store did not answer: Spark may read the file a moment later.
    """
    from pyspark.sql.types import StructType

    misfits, refused, read_as = dict[str, str](), dict[str, str](), dict[str, ReadAs]()
    lacking, drifts = dict[str, Sequence[str]](), dict[str, Drift]()
    declared = [name for name in schema.names if name != UNKNOWN]
    keep = keep and UNKNOWN in schema.names
    if uris:
        store, _ = filesystem(to_path(uris[0]))
        with ThreadPoolExecutor(REQUESTS) as pool:
            found = pool.map(lambda uri: _footer(store, to_path(uri).removeprefix("s3a://")), uris)
        for uri, footer in zip(uris, found, strict=True):
            whys: list[str] = []
            lacking[uri], drifts[uri] = footer.lacking(declared), footer.drift(declared)
            kept = footer.unknown_ddl(drifts[uri].unknown) if keep else ""
            if (why := _of_struct(footer.columns, schema, "")) is not None:
                misfits[uri] = visible(why)
                continue
            read = _readable(footer.columns, StructType([*schema, *columns_of(kept)]), whys)
            if whys:
                refused[uri] = visible("; ".join(whys))
            if whys or kept:
                read_as[uri] = ReadAs(read, kept)
    return Footers(misfits=misfits, refused=refused, read_as=read_as, lacking=lacking, drifts=drifts)


def columns_of(ddl: str) -> StructType:
    """Parse DDL of columns, of none where it is empty."""
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(ddl) if ddl else StructType()
    assert isinstance(parsed, StructType)
    return parsed


def _footer(store: FileSystem, path: str) -> _Footer:
    try:
        # Spark reads the timestamps of 96 bits, which Arrow takes for nanoseconds, as they are.
        with (
            raising_service_errors(),
            store.open_input_file(path) as file,
            pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as parquet,
        ):
            schema = parquet.schema_arrow
            return _Footer(columns=_by_name(schema), names=schema.names, metadata=parquet.metadata)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        return _Footer()


def _by_name(fields: Iterable[pa.Field]) -> dict[str, pa.DataType]:
    return {one.name.lower(): one.type for one in fields}


def _of_struct(of_file: Mapping[str, pa.DataType], declared: StructType, within: str) -> str | None:
    """Tell why a column of a struct would be blurred; None when none would.

    Spark finds a file's columns whatever their case; one that the file lacks is null.
    """
    reasons = (
        _of_type(of_file[field.name.lower()], field.dataType, within + field.name)
        for field in declared.fields
        if field.name.lower() in of_file
    )
    return next((why for why in reasons if why is not None), None)


def _of_type(of_file: pa.DataType, declared: DataType, name: str) -> str | None:
    from pyspark.sql.types import ArrayType, MapType, StructType

    of_file = storage_type(of_file)
    if isinstance(declared, StructType) and pa.types.is_struct(of_file):
        return _of_struct(_by_name(of_file.fields), declared, f"{name}.")
    if isinstance(declared, ArrayType) and isinstance(of_file, _LISTS):
        return _of_type(of_file.value_type, declared.elementType, f"{name}[]")
    if isinstance(declared, MapType) and isinstance(of_file, pa.MapType):
        of_keys = _of_type(of_file.key_type, declared.keyType, f"{name}.key")
        return of_keys or _of_type(of_file.item_type, declared.valueType, f"{name}.value")
    kind = declared.simpleString()
    return None if _fits(of_file, kind) else f"{name} is {of_file}, declared {kind}"


def storage_type(of_file: pa.DataType) -> pa.DataType:
    """Return the type that a file's values have, without what Arrow alone knows of it: extensions, dictionaries."""
    if isinstance(of_file, pa.BaseExtensionType):
        of_file = of_file.storage_type
    return of_file.value_type if isinstance(of_file, pa.DictionaryType) else of_file


def declared_type(of_file: pa.DataType) -> str | None:
    """Return the type to declare, as DDL, that reads a file's values as they are; None where there is none."""
    of_file = storage_type(of_file)
    if pa.types.is_decimal(of_file):
        precision, scale = of_file.precision, of_file.scale
        return f"decimal({precision},{scale})" if precision <= 38 and scale >= 0 else None
    if pa.types.is_timestamp(of_file):
        return "timestamp" if of_file.tz else "timestamp_ntz"
    if pa.types.is_struct(of_file):
        members = {one.name: declared_type(one.type) for one in of_file}
        if None in members.values() or len(_by_name(of_file)) < of_file.num_fields:
            return None
        return f"struct<{', '.join(f'{ddl_name(name)}: {inner}' for name, inner in members.items())}>"
    if isinstance(of_file, _LISTS):
        element = declared_type(of_file.value_type)
        return element and f"array<{element}>"
    if pa.types.is_map(of_file):
        key, item = declared_type(of_file.key_type), declared_type(of_file.item_type)
        return f"map<{key}, {item}>" if key and item else None
    return _DECLARED.get(of_file)


def _fits(of_file: pa.DataType, declared: str) -> bool:
    """Tell whether Spark reads the values as they are, or refuses them by itself."""
    if declared.startswith("decimal"):
        return not pa.types.is_temporal(of_file)
    return declared not in _TAKEN or of_file in _TAKEN[declared] or not _is_number(of_file)


def _is_number(of_file: pa.DataType) -> bool:
    """Tell whether a file keeps the type as a number, or as bytes that are one."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal)
    return any(is_one(of_file) for is_one in kinds)


def _readable(of_file: Mapping[str, pa.DataType], declared: StructType, whys: list[str]) -> str:
    """Return the schema that Spark reads a file by, as DDL; note why where that is not the declared one."""
    types = (_readable_type(of_file.get(one.name.lower()), one.dataType, one.name, whys) for one in declared)
    return ", ".join(f"{quoted(name)} {read}" for name, read in zip(declared.names, types, strict=True))


def _readable_type(of_file: pa.DataType | None, declared: DataType, name: str, whys: list[str]) -> str:
    from pyspark.sql.types import ArrayType, MapType, StructType

    of_file, kind = of_file and storage_type(of_file), declared.simpleString()
    if of_file == pa.null() and kind not in _NULLS:
        whys.append(f"{name} has no value in this file, and so no type, instead of {kind}")
        return "void"
    if isinstance(of_file, pa.TimestampType) and of_file.unit == "ns" and kind in _IN_NANOSECONDS:
        whys.append(f"{name} is {of_file}, in nanoseconds: write it with coerce_timestamps='us'")
        return _IN_NANOSECONDS[kind]
    if isinstance(declared, StructType):
        inner = _by_name(of_file.fields) if isinstance(of_file, pa.StructType) else {}
        fields = (
            f"{quoted(one.name)}: "
            + _readable_type(inner.get(one.name.lower()), one.dataType, f"{name}.{one.name}", whys)
            for one in declared
        )
        return f"struct<{', '.join(fields)}>"
    if isinstance(declared, ArrayType):
        of_items = of_file.value_type if isinstance(of_file, _LISTS) else None
        return f"array<{_readable_type(of_items, declared.elementType, f'{name}[]', whys)}>"
    if isinstance(declared, MapType):
        of_keys, of_values = (
            (of_file.key_type, of_file.item_type) if isinstance(of_file, pa.MapType) else (None, None)
        )
        keys = _readable_type(of_keys, declared.keyType, f"{name}.key", whys)
        return f"map<{keys}, {_readable_type(of_values, declared.valueType, f'{name}.value', whys)}>"
    return kind
