"""Exactly the values that a sink can't hold are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from etl.sinks.limits import breaches, repaired

DAY = 86_400_000_000
FIRST = -2_440_588  # 4713-11-24 BC, in days since 1970


def moments(values: list[int | None], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int32() if pa.types.is_date32(kind) else pa.int64()).view(kind)


def found(values: pa.Array, **how: Any) -> dict[str, list[bool]]:
    rows = pa.RecordBatch.from_arrays([values], names=["c"])
    return {reason: hit.to_pylist() for reason, hit in breaches(rows, **how)}


def raw(values: list[bytes | None]) -> pa.Array:
    """Make a string column of any bytes, as a careless reader does."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def test_good_rows_break_nothing() -> None:
    rows = pa.RecordBatch.from_pydict(
        {"a": ["", "ä", None], "b": [1.5, None, float("nan")], "c": [b"\x00", b"\xff", None]}
    )
    assert breaches(rows, keys=("b",)) != []
    assert breaches(rows) == []
    assert breaches(rows.slice(0, 0)) == []
    assert breaches(pa.RecordBatch.from_arrays([pa.nulls(2, pa.string())], names=["c"])) == []


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
def test_moments_before_the_first_julian_day_are_found(kind: pa.DataType) -> None:
    values = moments([FIRST * DAY, FIRST * DAY - 1, None, 2**63 - 1, -(2**63)], kind)
    assert found(values) == {"postgres_range(c)": [False, True, False, False, True]}
    assert found(values.slice(2, 2)) == {}


def test_dates_outside_of_the_range_are_found() -> None:
    values = moments([FIRST, FIRST - 1, 2_145_031_948, 2_145_031_949, None], pa.date32())
    assert found(values) == {"postgres_range(c)": [False, True, False, True, False]}


def test_nul_is_found_in_the_row_that_has_it() -> None:
    values = pa.array(["a\x00", "b", None, "\x00", ""])
    assert found(values) == {"postgres_nul(c)": [True, False, False, True, False]}
    assert found(values.slice(1, 2)) == {}
    assert found(values.slice(3)) == {"postgres_nul(c)": [True, False]}


def test_bytes_that_are_no_text_are_found() -> None:
    values = raw([b"ok", b"\xc3\x28", None, b"\xed\xa0\x80", b"\xff\x00"])
    assert found(values) == {
        "postgres_nul(c)": [False, False, False, False, True],
        "postgres_encoding(c)": [False, True, False, True, True],
    }


def test_repaired_text_is_valid_and_keeps_what_was_valid() -> None:
    values = repaired(raw([b"ok \xc3\xa4", b"\xc3\x28", None, b""]))
    values.validate(full=True)
    assert values.to_pylist() == ["ok ä", r"\xc3(", None, ""]
    unchanged = pa.array([1, 2])
    assert repaired(unchanged) is unchanged


def test_keys_are_neither_null_nor_too_long_for_an_index() -> None:
    values = pa.array(["k" * 1000, "k" * 1001, None, "ä" * 501])
    assert found(values, keys=("c",)) == {
        "null_key(c)": [False, False, True, False],
        "postgres_key_length(c)": [False, True, False, True],
    }


def test_the_columns_of_a_key_share_an_index_entry() -> None:
    rows = pa.RecordBatch.from_pydict({name: ["k" * 833, "k" * 834] for name in ("a", "b", "c")})
    hits = {reason: hit.to_pylist() for reason, hit in breaches(rows, keys=("a", "b", "c"))}
    assert hits == {f"postgres_key_length({name})": [False, True] for name in ("a", "b", "c")}


def test_a_text_that_is_too_long_for_a_folders_name_makes_no_partition() -> None:
    values = pa.array(["k" * 253, "k" * 254, "ä" * 42, "ä" * 43, None, ""])
    assert found(values, partitioned_by="c") == {
        "lake_partition(c)": [False, True, False, True, False, False],
    }
    assert found(values) == {}
    assert found(pa.array(["k" * 80, None]), partitioned_by="c") == {}


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
def test_partitions_end_with_the_years_1_and_9999(kind: pa.DataType) -> None:
    first, last = (
        np.datetime64(text, "us").astype(int) for text in ("0001-01-01", "9999-12-31T23:59:59.999999")
    )
    values = moments([first, first - 1, last, last + 1, None], kind)
    assert found(values, partitioned_by="c") == {"lake_partition(c)": [False, True, False, True, False]}
    assert found(values) == {}


def test_partitions_by_a_date_end_with_the_years_1_and_9999() -> None:
    first, last = (np.datetime64(text, "D").astype(int) for text in ("0001-01-01", "9999-12-31"))
    values = moments([first, first - 1, last, last + 1, None], pa.date32())
    assert found(values, partitioned_by="c") == {"lake_partition(c)": [False, True, False, True, False]}


def test_partitions_by_other_columns_have_no_end() -> None:
    assert found(pa.array([2**62]), partitioned_by="c") == {}
