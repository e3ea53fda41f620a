"""The types that both sinks hold alike, and what is told of those that they don't."""

from __future__ import annotations

import pyarrow as pa
import pytest

from etl.common.errors import TableRefused
from etl.pipeline import Append, Partition, Replace, Upsert, day, hour, identity, month
from etl.sinks.columns import common_schema, common_type, in_words
from etl.sinks.open import sink_problems


@pytest.mark.parametrize(
    ("kind", "common"),
    [
        (pa.int8(), pa.int32()),
        (pa.int16(), pa.int32()),
        (pa.int32(), pa.int32()),
        (pa.int64(), pa.int64()),
        (pa.bool_(), pa.bool_()),
        (pa.float32(), pa.float32()),
        (pa.float64(), pa.float64()),
        (pa.string(), pa.string()),
        (pa.large_string(), pa.string()),
        (pa.binary(), pa.binary()),
        (pa.large_binary(), pa.binary()),
        (pa.date32(), pa.date32()),
        (pa.decimal128(38, 0), pa.decimal128(38, 0)),
        (pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("ns", tz="Asia/Tokyo"), pa.timestamp("us", tz="UTC")),
        (pa.time64("us"), None),
        (pa.duration("us"), None),
        (pa.list_(pa.int64()), None),
        (pa.struct([("a", pa.int64())]), None),
        (pa.uint64(), None),
        (pa.decimal256(50, 0), None),
        (pa.null(), None),
    ],
    ids=str,
)
def test_common_types(kind: pa.DataType, common: pa.DataType | None) -> None:
    assert common_type(kind) == common


def test_every_column_becomes_nullable() -> None:
    found = common_schema(pa.schema([pa.field("a", pa.int8(), nullable=False)]), pipeline="p")
    assert found == pa.schema([pa.field("a", pa.int32(), nullable=True)])


def test_all_that_is_wrong_with_the_columns_is_told_at_once() -> None:
    output = pa.schema(
        [
            ("a", pa.time64("us")),
            ("_b", pa.int64()),
            ("ä" * 32, pa.int64()),
            ("Name", pa.string()),
            ("name", pa.string()),
            ("ctid", pa.string()),
            ("xmin", pa.int64()),
            ("", pa.int64()),
        ]
    )
    with pytest.raises(TableRefused) as refused:
        common_schema(output, pipeline="p")
    for seen in (
        "a is time64[us], which both sinks do not hold alike",
        "_b: names that start with _",
        "longer than PostgreSQL's 63 bytes",
        "name: twice",
        "ctid: every table of PostgreSQL has a system column of this name",
        "xmin: every table of PostgreSQL",
        "a column has an empty name",
    ):
        assert seen in str(refused.value)


def test_a_name_that_only_looks_like_one_of_postgresqls_own_is_taken() -> None:
    output = pa.schema([("XMIN", pa.int64()), ("Ctid", pa.int64())])
    assert common_schema(output, pipeline="p") == output


COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us")),
        ("on", pa.date32()),
        ("x", pa.float64()),
        ("name", pa.string()),
    ]
)


@pytest.mark.parametrize(
    "by", [day("at"), hour("at"), month("at"), day("on"), month("on"), identity("id"), identity("name")]
)
def test_partitions_that_fit(by: Partition) -> None:
    assert sink_problems(Append(partition_by=by), COLUMNS) == []


@pytest.mark.parametrize(
    "by", [hour("on"), day("id"), month("name"), identity("x"), identity("at"), identity("on")]
)
def test_partitions_that_do_not_fit(by: Partition) -> None:
    [problem] = sink_problems(Replace(partition_by=by), COLUMNS)
    is_a = {
        "id": "a bigint",
        "at": "a timestamp without a zone",
        "on": "a date",
        "x": "a double",
        "name": "a text",
    }
    assert problem == f"{by.kind} of {by.column}, which is {is_a[by.column]}, makes no partitions"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.int8(), "an integer"),
        (pa.decimal128(9, 2), "a decimal(9,2)"),
        (pa.timestamp("ns", tz="Europe/Berlin"), "a timestamp"),
        (pa.list_(pa.int32()), "a list of an integer"),
        (pa.map_(pa.string(), pa.list_(pa.bool_())), "a map from a text to a list of a boolean"),
        (pa.struct([("a", pa.int8()), ("b", pa.string())]), "a struct of a, b"),
        (pa.null(), "null in all rows"),
    ],
)
def test_a_type_is_told_in_words(kind: pa.DataType, words: str) -> None:
    assert in_words(kind) == words


def test_columns_that_a_sink_names_and_the_transform_lacks() -> None:
    sink = Upsert(keys=("id", "no"), newest="never", partition_by=day("nowhere"))
    assert [problem.split()[4] for problem in sink_problems(sink, COLUMNS)] == [
        "'nowhere',",
        "'no',",
        "'never',",
    ]
