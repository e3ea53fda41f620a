"""Values of Parquet files of every type: each is read as it is, whatever is declared, or not at all."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from etl.common.record_columns import DETAIL, MALFORMED_COLUMN, SOURCE_PATH
from etl.pipeline import Files
from etl.sources.parquet_types import footers
from etl.sources.parsing import Reading, ddl_fields, read_files

NOON = dt.datetime.fromisoformat("2024-01-01T12:00:00.123")
# A value of each type that a Parquet file may have, and what it means.
KEPT_AS: dict[str, tuple[pa.Array, Any]] = {
    name: (pa.array([value], kind), value if meant is None else meant)
    for name, kind, value, meant in [
        ("bool", pa.bool_(), True, None),
        ("int8", pa.int8(), -5, None),
        ("int16", pa.int16(), 300, None),
        ("int32", pa.int32(), 100_000, None),
        ("int64", pa.int64(), 2**40, None),
        ("uint8", pa.uint8(), 200, None),
        ("uint16", pa.uint16(), 40_000, None),
        ("uint32", pa.uint32(), 3_000_000_000, None),
        ("uint64", pa.uint64(), 2**63 + 5, None),
        ("float16", pa.float16(), np.float16(1.5), 1.5),
        ("float", pa.float32(), 1.5, None),
        ("double", pa.float64(), 1.1, None),
        ("decimal(9,2)", pa.decimal128(9, 2), Decimal("12.34"), None),
        ("decimal(18,2)", pa.decimal128(18, 2), Decimal("12.34"), None),
        ("decimal(20,3)", pa.decimal128(20, 3), Decimal("12.345"), None),
        ("decimal(9,0)", pa.decimal128(9, 0), Decimal(1234), None),
        ("date32", pa.date32(), dt.date(2020, 1, 1), dt.datetime.fromisoformat("2020-01-01")),
        ("time32", pa.time32("ms"), dt.time(1), None),
        ("time64", pa.time64("us"), dt.time(1), None),
        ("time64-ns", pa.time64("ns"), dt.time(1), None),
        ("timestamp-ms", pa.timestamp("ms"), NOON, None),
        ("timestamp-us", pa.timestamp("us"), NOON, None),
        ("timestamp-us-UTC", pa.timestamp("us", "UTC"), NOON, None),
        ("timestamp-ns", pa.timestamp("ns"), NOON, None),
        ("timestamp-ns-UTC", pa.timestamp("ns", "UTC"), NOON, None),
        ("duration-ms", pa.duration("ms"), dt.timedelta(hours=1), 3_600_000_000),
        ("duration-us", pa.duration("us"), dt.timedelta(hours=1), 3_600_000_000),
        ("string", pa.string(), "7", b"7"),
        ("binary", pa.binary(), b"7", None),
        ("fixed", pa.binary(4), b"7777", None),
        ("dictionary", pa.dictionary(pa.int32(), pa.string()), "7", b"7"),
        ("null", pa.null(), None, None),
    ]
}
# By declared type, what Spark reads of them as it is. All else is a misfit, or Spark refuses it.
AS_IT_IS = {
    "boolean": "bool null",
    "tinyint": "int8 null",
    "smallint": "int8 int16 uint8 null",
    "int": "int8 int16 int32 uint8 uint16 null",
    "bigint": "int8 int16 int32 int64 uint8 uint16 uint32 null",
    "float": "float null",
    "double": "int8 int16 int32 uint8 uint16 float double null",
    "decimal(9,2)": "decimal(9,2) null",
    "decimal(20,3)": "int8 int16 int32 decimal(9,2) decimal(18,2) decimal(20,3) decimal(9,0) null",
    "decimal(38,6)": "int8 int16 int32 int64 decimal(9,2) decimal(18,2) decimal(20,3) decimal(9,0) null",
    "date": "date32 null",
    "timestamp": "timestamp-ms timestamp-us timestamp-us-UTC timestamp-ns timestamp-ns-UTC null",
    "timestamp_ntz": "date32 timestamp-ms timestamp-us timestamp-us-UTC timestamp-ns timestamp-ns-UTC null",
    "string": "string binary dictionary null",
    "binary": "string binary fixed dictionary null",
    "interval day to second": "int64 duration-us null",
}


def meant(value: Any) -> Any:
    """Return what compares by its meaning: bytes for a text, midnight for a day, microseconds for a span."""
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(microseconds=1)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    return dt.datetime.combine(value, dt.time()) if isinstance(value, dt.date) else value


def nested(array: pa.Array) -> pa.Table:
    """Return one row that has the value as it is and within every type that can hold it."""
    one, key = pa.array([0, 1], pa.int32()), pa.array(["k"])
    columns = {
        "x": array,
        "many": pa.ListArray.from_arrays(one, array),
        "large": pa.LargeListArray.from_arrays(one.cast(pa.int64()), array),
        "fixed": pa.FixedSizeListArray.from_arrays(array, 1),
        "inner": pa.StructArray.from_arrays([array], ["a"]),
        "by_key": pa.MapArray.from_arrays(one, key, array),
    }
    return pa.table(columns)


NESTED = (
    "x {0}, many array<{0}>, large array<{0}>, fixed array<{0}>, inner struct<a: {0}, `no one`: int>,"
    " by_key map<string, {0}>"
)


@pytest.mark.parametrize("as_integer", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_column_of_parquet_is_read_as_it_is_or_not_at_all(
    spark: SparkSession, tmp_path: Path, as_integer: bool
) -> None:
    """Whatever type a file has and whatever is declared, at every depth."""
    uris = {}
    for name, (array, _) in KEPT_AS.items():
        file = tmp_path / f"{len(uris)}.parquet"
        pq.write_table(nested(array), file, store_decimal_as_integer=as_integer)
        uris[file.as_uri()] = name
    found = {}
    for declared in AS_IT_IS:
        schema = ddl_fields(NESTED.format(declared), "")
        told = footers(list(uris), schema)
        for field in schema.fields:
            alone = footers(list(uris), StructType([field]))
            assert set(alone.misfits) == set(told.misfits), f"{field.name} is told as the others are"
            assert set(alone.refused) == set(told.refused) == set(told.read_as)
        # What Spark refuses gives no row, instead of failing the job.
        fit = set(uris) - set(told.misfits)
        reading = Reading(broken=True, read_as=told.read_as)
        frame = read_files(spark, Files("*.parquet"), schema, fit, reading=reading)
        rows = frame.drop(MALFORMED_COLUMN, DETAIL).toArrow().to_pylist()
        found[declared] = [uris[row.pop(SOURCE_PATH)] for row in rows]
        for row, name in zip(rows, found[declared], strict=True):
            depths = (
                row["x"],
                *row["many"],
                *row["large"],
                *row["fixed"],
                row["inner"]["a"],
                row["by_key"][0][1],
            )
            assert {meant(value) for value in depths} == {KEPT_AS[name][1]}, (name, declared, row)
    assert {
        declared: " ".join(sorted(names, key=list(KEPT_AS).index)) for declared, names in found.items()
    } == AS_IT_IS


@pytest.mark.parametrize("declared", ["timestamp", "timestamp_ntz"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
def test_nanoseconds_are_cut_to_microseconds(
    spark: SparkSession, tmp_path: Path, declared: str, zone: str | None
) -> None:
    """Files of every unit are read together, and a moment before 1970 is cut to the one before it."""
    moments = pa.array([1_704_110_400_123_456_789, None, -1, -1_001, -(2**63) + 808], pa.int64())
    cut = [None if one is None else one // 1000 for one in moments.to_pylist()]
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "plain": ("ns", {"use_dictionary": False, "store_schema": False}),
        "dictionary": ("ns", {}),
        "delta": ("ns", {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}),
        "int96": ("ns", {"use_deprecated_int96_timestamps": True}),
        "microseconds": ("us", {}),
    }
    for name, (unit, options) in ways.items():
        at = (moments if unit == "ns" else pa.array(cut, pa.int64())).cast(pa.timestamp(unit, zone))
        pq.write_table(pa.table({"AT": at, "n": range(len(at))}), tmp_path / f"{name}.parquet", **options)
    uris = [(tmp_path / f"{name}.parquet").as_uri() for name in ways]
    schema = ddl_fields(f"at {declared}, n bigint", "")
    told = footers(uris, schema)
    assert told.misfits == {}
    assert {uri.rpartition("/")[2] for uri in told.read_as} == {
        f"{name}.parquet" for name in ("plain", "dictionary", "delta")
    }
    frame = read_files(spark, Files("*.parquet"), schema, uris, reading=Reading(read_as=told.read_as))
    rows = frame.selectExpr("n", "unix_micros(cast(at as timestamp)) at").collect()
    assert sorted((row.n, row.at or 0) for row in rows) == sorted(
        (n, moment or 0) for n, moment in enumerate(cut) for _ in ways
    )
