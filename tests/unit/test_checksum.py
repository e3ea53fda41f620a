"""Equal multisets of rows have equal checksums, however they are stored; other rows have others."""

from __future__ import annotations

import decimal
import math
import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from etl.sinks import checksum as room
from etl.sinks.checksum import MODULUS, checksum

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int32(), [0, 1, -1, 2**31 - 1, None]),
    (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), None]),
    (pa.float32(), [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, None]),
    (pa.float64(), [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, None]),
    (pa.string(), ["", "a", "b", "ab", "ba", "aa", "\x00", "ä", "a" * 300, None]),
    (pa.binary(), [b"", b"a", b"\x00", b"\x00\x00", b"\xff", None]),
    (
        pa.decimal128(20, 2),
        [decimal.Decimal(text) for text in ("0", "1", "-1", "184467440737095516.16")] + [None],
    ),
    (pa.date32(), [0, 1, -1, None]),
    (pa.timestamp("us"), [0, 1, -1, 2**62, None]),
    (pa.timestamp("us", tz="UTC"), [0, 1, -1, 2**62, None]),
]
SCHEMA = pa.schema([(f"c{place}", kind) for place, (kind, _) in enumerate(VALUES)])


def batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[] for _ in SCHEMA]
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def total(*batches: pa.RecordBatch) -> int:
    return sum(checksum(one, one.schema.names) for one in batches) % MODULUS


@pytest.fixture
def rows() -> list[tuple[Any, ...]]:
    chance = random.Random(3)
    return [tuple(chance.choice(values) for _, values in VALUES) for _ in range(500)]


def test_neither_order_nor_split_nor_slice_matters(rows: list[tuple[Any, ...]]) -> None:
    whole = batch(rows)
    assert total(whole) == total(batch(rows[::-1]))
    assert total(whole) == total(batch(rows[:7]), batch([]), batch(rows[7:]))
    assert total(whole) == total(whole.slice(0, 13), whole.slice(13, 200), whole.slice(213))
    assert total(whole) == total(*pa.Table.from_batches([whole]).to_batches(max_chunksize=3))


@pytest.mark.parametrize("place", range(len(VALUES)))
def test_every_value_counts(place: int) -> None:
    values = VALUES[place][1]
    found = {
        checksum(batch([tuple(v if n == place else None for n in range(len(VALUES)))]), SCHEMA.names)
        for v in values
    }
    assert len(found) == len(values)


def test_one_row_more_less_or_twice_is_seen(rows: list[tuple[Any, ...]]) -> None:
    whole = total(batch(rows))
    assert total(batch(rows[1:])) != whole
    assert total(batch([*rows, rows[0]])) != whole
    assert total(batch([rows[0], rows[0]])) != 0
    assert total(batch([rows[0], *rows[2:], rows[0]])) != whole


def test_values_that_change_places_are_seen() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    one = pa.RecordBatch.from_pylist([{"a": 1, "b": 2}, {"a": 3, "b": 4}], schema=schema)
    within = pa.RecordBatch.from_pylist([{"a": 2, "b": 1}, {"a": 3, "b": 4}], schema=schema)
    between = pa.RecordBatch.from_pylist([{"a": 1, "b": 4}, {"a": 3, "b": 2}], schema=schema)
    assert len({total(one), total(within), total(between)}) == 3


def test_a_column_of_nulls_adds_nothing() -> None:
    old = pa.RecordBatch.from_pylist([{"a": 1}, {"a": None}])
    new = old.append_column("b", pa.nulls(2, pa.string()))
    assert total(old) == total(new)


def test_every_nan_is_the_same_nan() -> None:
    bits = [0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001]
    found = {
        checksum(
            pa.RecordBatch.from_arrays([pa.array(np.frombuffer(struct.pack("<Q", one), "<f8"))], names=["x"]),
            ["x"],
        )
        for one in bits
    }
    assert len(found) == 1


def test_texts_longer_than_a_piece_are_hashed_as_short_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    texts = [
        None if chance.random() < 0.1 else chance.randbytes(chance.choice((0, 1, 63, 64, 65, 500)))
        for _ in range(300)
    ]
    column = pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], names=["t"])
    wanted = [checksum(column.slice(place, 1), ["t"]) for place in range(300)]
    room._powers.cache_clear()
    monkeypatch.setattr(room, "PIECE_BYTES", 64)
    assert [checksum(column.slice(place, 1), ["t"]) for place in range(300)] == wanted
    assert checksum(column, ["t"]) == sum(wanted) % MODULUS
    room._powers.cache_clear()


def test_long_columns_need_little_memory() -> None:
    column = pa.RecordBatch.from_arrays([pa.array(["y" * 1_000_000] * 64, pa.string())], names=["t"])
    checksum(column.slice(0, 1), ["t"])
    before = psutil.Process().memory_info().rss
    checksum(column, ["t"])
    assert psutil.Process().memory_info().rss - before < 50_000_000
