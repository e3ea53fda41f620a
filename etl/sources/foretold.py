"""Finds files that can't be read by today's declaration from their headers and footers alone.

Spark has the last word when it reads them: this is for a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from etl.common.outcome import in_short
from etl.common.paths import REQUESTS, filesystem, to_path
from etl.common.wording import visible
from etl.ledger.inputs import Input
from etl.pipeline import Files, Pipeline
from etl.pipeline.ddl import ddl_columns, ddl_parts
from etl.sources.csv_records.dialect import Dialect
from etl.sources.csv_records.header import Layout, read_header
from etl.sources.parquet_types import footers, storage_type
from etl.sources.unreadable import FileUnfit

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def foretold(pipeline: Pipeline, sources: Sequence[Files], inputs: Sequence[Input]) -> dict[str, str]:
    """Return the files that will not be read, each with the reason; what can't be opened is not told.

    Raises ServiceAway where the store of Parquet files did not answer.
    """
    reasons: dict[str, str] = {}
    for number, files in enumerate(sources):
        uris = [one.uri for one in inputs if one.source == number]
        schema = pipeline.all_streams[files.stream].schema
        if files.kind == "csv" and files.header:
            reasons |= _unfit(uris, files, schema)
        elif files.kind == "parquet":
            reasons |= _unfit(uris, files, schema)
            reasons |= footers([uri for uri in uris if uri not in reasons], _atomic(schema)).misfits
    return reasons


def _unfit(uris: Sequence[str], files: Files, schema: str) -> dict[str, str]:
    if not uris:
        return {}
    store, _ = filesystem(to_path(uris[0]))

    def look(uri: str) -> str | None:
        path = to_path(uri).removeprefix("s3a://")
        try:
            return (
                _of_footer(store, path, schema)
                if files.kind == "parquet"
                else _of_header(store, path, files, schema)
            )
        except OSError:  # which is Spark's to tell
            return None

    with ThreadPoolExecutor(REQUESTS) as pool:
        reasons = pool.map(look, uris)
        return {uri: visible(why) for uri, why in zip(uris, reasons, strict=True) if why is not None}


def _of_header(store: FileSystem, path: str, files: Files, schema: str) -> str | None:
    """Tell why a CSV file's header does not fit the schema; None when it does, or there is none."""
    try:
        header = read_header(store, path, Dialect.of(files.options))
        if header is not None:
            Layout.of_header(header, ddl_columns(schema))
    except FileUnfit as unfit:
        return str(unfit)
    return None


def _of_footer(store: FileSystem, path: str, schema: str) -> str | None:
    """Tell why a Parquet file's columns do not fit the schema; None when they do.

    Spark refuses a text for a number and the other way round; numbers of other kinds are told by `footers`.
    """
    try:
        with store.open_input_file(path) as file:
            kinds = {one.name.lower(): storage_type(one.type) for one in pq.read_schema(file)}
    except pa.ArrowInvalid as error:
        return in_short(error)
    except pa.ArrowNotImplementedError:
        return None
    for name, declared in ddl_parts(schema):
        kind, type_ = declared.lower(), kinds.get(name.lower())
        if type_ is None or pa.types.is_null(type_):  # of a column that has no value
            continue
        if _is_text(type_) != kind.startswith(("string", "binary", "varchar", "char")):
            return f"{name} is {type_}, declared {declared}"
    return None


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_one(kind)
        for is_one in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
        )
    )


def _atomic(schema: str) -> StructType:
    """Return the columns of a schema whose types need no parser.

    Spark's parser is in its JVM, which a plan does not start.
    """
    from pyspark.sql import types

    kinds = {
        one.simpleString(): one
        for one in (
            types.ByteType(),
            types.ShortType(),
            types.IntegerType(),
            types.LongType(),
            types.DateType(),
            types.BinaryType(),
        )
    }
    kinds |= {
        "byte": kinds["tinyint"],
        "short": kinds["smallint"],
        "integer": kinds["int"],
        "long": kinds["bigint"],
    }
    named = ((name, kinds.get(declared.lower().partition(" ")[0])) for name, declared in ddl_parts(schema))
    return types.StructType([types.StructField(name, kind) for name, kind in named if kind is not None])
