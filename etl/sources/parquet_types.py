"""Finds Parquet files whose columns have other types than declared, from their footers.

Spark's reader takes the bits of a whole number for another whole number, a date, a span of time or a decimal's digits,
without a message: an int32 of 300 becomes a tinyint of 44, a decimal of 12.34 a double of 1234 (Spark 4.3, tried).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from etl.common.outages import raising_service_errors
from etl.common.paths import REQUESTS, filesystem, to_path
from etl.common.wording import visible

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
_LISTS = pa.ListType | pa.LargeListType | pa.FixedSizeListType


def misfits(uris: Sequence[str], schema: StructType) -> dict[str, str]:
    """Return the files of which a column would be blurred, each with the reason.

    All lie in one store. What is no Parquet file is Spark's to tell. Raises ServiceAway where the store did not
    answer: Spark may read the file a moment later.
    """
    if not uris:
        return {}
    store, _ = filesystem(to_path(uris[0]))
    with ThreadPoolExecutor(REQUESTS) as pool:
        reasons = pool.map(lambda uri: _misfit(store, to_path(uri).removeprefix("s3a://"), schema), uris)
        return {uri: visible(why) for uri, why in zip(uris, reasons, strict=True) if why is not None}


def _misfit(store: FileSystem, path: str, schema: StructType) -> str | None:
    try:
        with raising_service_errors(), store.open_input_file(path) as file:
            schema_of_file = pq.read_schema(file)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
        return None
    return _of_struct({one.name.lower(): one.type for one in schema_of_file}, schema, "")


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

    of_file = kept_as(of_file)
    if isinstance(declared, StructType) and pa.types.is_struct(of_file):
        return _of_struct({one.name.lower(): one.type for one in of_file.fields}, declared, f"{name}.")
    if isinstance(declared, ArrayType) and isinstance(of_file, _LISTS):
        return _of_type(of_file.value_type, declared.elementType, f"{name}[]")
    if isinstance(declared, MapType) and isinstance(of_file, pa.MapType):
        of_keys = _of_type(of_file.key_type, declared.keyType, f"{name}.key")
        return of_keys or _of_type(of_file.item_type, declared.valueType, f"{name}.value")
    kind = declared.simpleString()
    return None if _fits(of_file, kind) else f"{name} is {of_file}, declared {kind}"


def kept_as(of_file: pa.DataType) -> pa.DataType:
    """Return the type that a file's values have, without what Arrow alone knows of it: extensions, dictionaries."""
    if isinstance(of_file, pa.BaseExtensionType):
        of_file = of_file.storage_type
    return of_file.value_type if isinstance(of_file, pa.DictionaryType) else of_file


def _fits(of_file: pa.DataType, declared: str) -> bool:
    """Tell whether Spark reads the values as they are, or refuses them by itself."""
    if declared.startswith("decimal"):
        return not pa.types.is_temporal(of_file)
    return declared not in _TAKEN or of_file in _TAKEN[declared] or not _is_number(of_file)


def _is_number(of_file: pa.DataType) -> bool:
    """Tell whether a file keeps the type as a number, or as bytes that are one."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal)
    return any(is_one(of_file) for is_one in kinds)
