"""A JSON value becomes the declared type as docs/reading.md says, or its record is malformed and says why."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from etl.common.record_bounds import DEFAULT, Bounds
from etl.common.wording import visible
from etl.sources.counts import Drift
from etl.sources.json_records.blocks import FEW, PIECE, JsonReader, _Unfit
from etl.sources.json_records.lines import _ARRAY, _GOES_ON
from etl.sources.json_records.values import converter
from tests.support.hostile_json import SCHEMA, hostile_records

UTC = dt.UTC
MOMENT = pa.timestamp("us", tz="UTC")
DECIMAL = pa.decimal128(10, 2)
STRUCT = pa.struct([("x", pa.int32()), ("y", pa.string())])


def read(kind: pa.DataType, *values: str, lines: int = 1) -> list[dict[str, Any]]:
    """Read records of one field `v`, each `lines` times, so that Arrow's parser reads them where there are many."""
    records = [f'{{"v": {value}}}'.encode("utf-8", "surrogatepass") for value in values for _ in range(lines)]
    rows = JsonReader(schema=pa.schema([("v", kind)])).read(pa.array(records, pa.binary()))
    found = rows.to_pylist()
    for first in range(0, len(found), lines):
        assert_same([found[first]] * lines, found[first : first + lines])
    return found[::lines]


def assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    # As text, -0.0 is not 0.0, and NaN is NaN.
    assert [json.dumps(row, default=str) for row in one] == [json.dumps(row, default=str) for row in other]


TAKEN: list[tuple[pa.DataType, str, Any]] = [
    (pa.string(), '"a"', "a"),
    (pa.string(), '""', ""),
    (pa.string(), '" a "', " a "),
    (pa.string(), '"\\u00e4\\ud83d\\ude00\\u0000\\/"', "ä😀\x00/"),
    (pa.string(), "1.10", "1.10"),
    (pa.string(), "12345678901234567890.50", "12345678901234567890.50"),
    (pa.string(), "true", "true"),
    (pa.string(), '{"b": 1.0, "a": [1e5, "ä\\n", null, true], "b": {}}', '{"b":1.0,"a":[1e5,"ä\\n",null,true],"b":{}}'),
    (pa.int8(), "-128", -128),
    (pa.int8(), "127", 127),
    (pa.int16(), "-32768", -32768),
    (pa.int32(), "2147483647", 2147483647),
    (pa.int64(), "-9223372036854775808", -(2**63)),
    (pa.int64(), "-0", 0),
    (pa.float64(), "1", 1.0),
    (pa.float64(), "-0", -0.0),
    (pa.float64(), "0.1", 0.1),
    (pa.float64(), "1e-400", 0.0),
    (pa.float64(), "9007199254740993", 9007199254740992.0),
    (pa.float64(), f"0.{'1' * 2000}", 1 / 9),
    (pa.float64(), "1e-100000", 0.0),
    (pa.float64(), '"NaN"', math.nan),
    (pa.float64(), "NaN", math.nan),
    (pa.float64(), "-Infinity", -math.inf),
    (pa.float32(), "0.1", float(np.float32("0.1"))),
    # Halfway between two floats to a double, a little above it as it is written.
    (pa.float32(), "1.00000005960464477540", 1.0000001192092896),
    (pa.float32(), '"Infinity"', math.inf),
    (DECIMAL, "12.5", Decimal("12.50")),
    (DECIMAL, '"12.50"', Decimal("12.50")),
    (DECIMAL, "12.500", Decimal("12.50")),
    (DECIMAL, "1.25e1", Decimal("12.50")),
    (DECIMAL, '"+.5"', Decimal("0.50")),
    (DECIMAL, '"0000000000005."', Decimal("5.00")),
    (DECIMAL, "99999999.99", Decimal("99999999.99")),
    (DECIMAL, "-0.00", Decimal("0.00")),
    (pa.bool_(), "false", False),
    (pa.date32(), '"2024-02-29"', dt.date(2024, 2, 29)),
    (pa.date32(), '"0001-01-01"', dt.date(1, 1, 1)),
    (MOMENT, '"2026-01-02T03:04:05Z"', dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (MOMENT, '"2026-01-02 03:04:05.120+02:00"', dt.datetime(2026, 1, 2, 1, 4, 5, 120000, tzinfo=UTC)),
    (MOMENT, '"2026-01-02T03:04:05.123456789Z"', dt.datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
    (MOMENT, '"2026-01-02T03:04:05"', dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (MOMENT, '"2026-01-02T03:04-0130"', dt.datetime(2026, 1, 2, 4, 34, tzinfo=UTC)),
    (MOMENT, '"2026-01-02T03+01"', dt.datetime(2026, 1, 2, 2, tzinfo=UTC)),
    (MOMENT, '"2026-01-02"', dt.datetime(2026, 1, 2, tzinfo=UTC)),
    (MOMENT, '"9999-12-31T23:59:59.999999Z"', dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    (pa.timestamp("us"), '"2026-01-02T03:04:05"', dt.datetime(2026, 1, 2, 3, 4, 5)),  # noqa: DTZ001
    (pa.binary(), '"aGk="', b"hi"),
    (STRUCT, '{"y": "a", "z": 1, "z": 2}', {"x": None, "y": "a"}),
    (pa.list_(pa.int32()), "[1, null]", [1, None]),
    (pa.list_(DECIMAL), '["1", 2]', [Decimal("1.00"), Decimal("2.00")]),
    (pa.map_(pa.string(), pa.int64()), '{"b": 1, "a": null}', [("b", 1), ("a", None)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "expected"), TAKEN, ids=lambda one: str(one)[:40])
def test_a_value_is_what_the_record_says(kind: pa.DataType, value: str, expected: Any) -> None:
    for lines in (1, FEW + 1):
        [row] = read(kind, value, lines=lines)
        assert_same([row], [{"v": expected, "_malformed": None, "_detail": None}])


HELD: list[tuple[pa.DataType, str, str]] = [
    (pa.string(), '"cut \\ud83d"', r"v: found half of a surrogate pair, \ud83d, wanted Unicode"),
    (pa.string(), '{"a": "\\udc00"}', r"v: found half of a surrogate pair, \udc00, wanted Unicode"),
    (pa.string(), "NaN", "v: found NaN, wanted string"),
    (pa.int32(), '"1"', 'v: found "1", wanted int, from -2147483648 to 2147483647'),
    (pa.int32(), "1.0", "v: found 1.0, wanted int, from -2147483648 to 2147483647"),
    (pa.int32(), "1e2", "v: found 1e2, wanted int, from -2147483648 to 2147483647"),
    (pa.int32(), "3000000000", "v: found 3000000000, wanted int, from -2147483648 to 2147483647"),
    (pa.int8(), "200", "v: found 200, wanted tinyint, from -128 to 127"),
    (pa.int64(), "9" * 5000, f"v: found {'9' * 60}…, wanted bigint, from -{2**63} to {2**63 - 1}"),
    (pa.int32(), "true", "v: found true, wanted int, from -2147483648 to 2147483647"),
    (pa.float64(), "1e400", "v: found 1e400, wanted a number within the range of double"),
    (pa.float32(), "1e40", "v: found 1e40, wanted a number within the range of float"),
    (pa.float64(), '"1.5"', 'v: found "1.5", wanted double'),
    (pa.float64(), '"nan"', 'v: found "nan", wanted double'),
    (DECIMAL, '"12,50"', 'v: found "12,50", wanted decimal(10,2)'),
    (DECIMAL, '"1.234,56"', 'v: found "1.234,56", wanted decimal(10,2)'),
    (DECIMAL, "12.505", "v: found 12.505, wanted decimal(10,2)"),
    (DECIMAL, "100000000", "v: found 100000000, wanted decimal(10,2)"),
    (DECIMAL, "1e100000000", "v: found an exponent of 100,000,000, wanted 999 at most (SLUICE_NUMBER_EXPONENT)"),
    (DECIMAL, '"1e-999999999"', 'v: found an exponent of 999,999,999, wanted 999 at most (SLUICE_NUMBER_EXPONENT)'),
    (DECIMAL, '"٣"', 'v: found "٣", wanted decimal(10,2)'),
    (DECIMAL, '"1_0"', 'v: found "1_0", wanted decimal(10,2)'),
    (DECIMAL, '" 1"', 'v: found " 1", wanted decimal(10,2)'),
    (DECIMAL, '"NaN"', 'v: found "NaN", wanted decimal(10,2)'),
    (DECIMAL, '""', 'v: found "", wanted decimal(10,2)'),
    (pa.bool_(), "1", "v: found 1, wanted boolean"),
    (pa.bool_(), '"true"', 'v: found "true", wanted boolean'),
    (pa.date32(), '"44197"', 'v: found "44197", wanted a date, such as 2026-01-31'),
    (pa.date32(), '"202101"', 'v: found "202101", wanted a date, such as 2026-01-31'),
    (pa.date32(), '"2026-1-2"', 'v: found "2026-1-2", wanted a date, such as 2026-01-31'),
    (pa.date32(), '"2026-02-30"', 'v: found "2026-02-30", wanted a date: day is out of range for month'),
    (pa.date32(), '"0000-01-01"', 'v: found "0000-01-01", wanted a date: year 0 is out of range'),
    (pa.date32(), '"2026-01-02T00:00:00Z"', 'v: found "2026-01-02T00:00:00Z", wanted a date, such as 2026-01-31'),
    (pa.date32(), "20260102", "v: found 20260102, wanted a date, such as 2026-01-31"),
    (pa.timestamp("us"), '"2026-01-02T03:04:05Z"',
     'v: found "2026-01-02T03:04:05Z", wanted a timestamp_ntz, such as 2026-01-31T23:59:59.123456'),
    (pa.binary(), '"hi!"', 'v: found "hi!", wanted binary, in base64: Only base64 data is allowed'),
    (STRUCT, '{"x": 1, "x": 2}', "v.x: found twice"),
    (STRUCT, '{"x": "a"}', 'v.x: found "a", wanted int, from -2147483648 to 2147483647'),
    (STRUCT, "[]", "v: found [], wanted an object"),
    (pa.list_(STRUCT), '[{"x": 1}, {"x": 1.5}]', "v[1].x: found 1.5, wanted int, from -2147483648 to 2147483647"),
    (pa.list_(pa.int32()), "5", "v: found 5, wanted an array"),
    (pa.map_(pa.string(), pa.int64()), '{"a": 1, "a": 2}', "v.a: found twice"),
    (pa.map_(pa.string(), pa.int64()), '{"a": true}', f"v.a: found true, wanted bigint, from -{2**63} to {2**63 - 1}"),
]  # fmt: skip
NO_MOMENTS = (
    '"1767322800"', "1767322800", "1704067200000000", '"10:30"', '"2026"', '"2026-01"', '"202101"', '"44197"',
    '"2021-07-01 10:00:00 BST"', '"2021-07-01 10:00:00 UTC"', '"2026-01-02T03:04:05[Europe/Paris]"', '"2026-01-02Z"',
    '"2026-01-02T24:00:00Z"', '"2026-01-02T23:59:60Z"', '"2026-01-02t03:04:05z"', '" 2026-01-02T03:04:05Z"',
    '"2026-02-30T00:00:00Z"', '"2026-01-02T03:04:05+24:00"', '"2026-01-02T03:04:05+01:60"', '"2026-01-02T030405Z"',
    '"10000-01-01T00:00:00Z"', '"0000-01-01T00:00:00Z"', '"0001-01-01T00:00:00+01:00"', '"9999-12-31T23:59:59-01:00"',
    '"2026-W01-1"', '"20260102T030405Z"', '"now"', '"today"', '"epoch"', '""',
)  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "detail"), HELD, ids=lambda one: str(one)[:40])
def test_what_is_no_value_of_its_type_is_held_and_told(kind: pa.DataType, value: str, detail: str) -> None:
    for lines in (1, FEW + 1):
        [row] = read(kind, value, lines=lines)
        raw = f'{{"v": {value}}}'
        assert row == {"v": None, "_malformed": raw, "_detail": detail}


@pytest.mark.parametrize("value", NO_MOMENTS)
def test_a_moment_is_written_in_full_or_the_record_is_held(value: str) -> None:
    for lines in (1, FEW + 1):
        [row] = read(MOMENT, value, lines=lines)
        assert (row["v"], row["_malformed"]) == (None, f'{{"v": {value}}}')
        assert row["_detail"].startswith(f"v: found {value}, wanted a timestamp")


@pytest.mark.parametrize(
    ("record", "detail"),
    [
        (b"not json", "no JSON: Expecting value at character 1"),
        (b'{"v": 1', f"no JSON: Expecting ',' delimiter at its end, after character 7; {_GOES_ON}"),
        (b"{", "no JSON: Expecting property name enclosed in double quotes at its end, after character 1; " + _GOES_ON),
        (b'{"v": 1} {"v": 2}', "no JSON: Extra data at character 10"),
        (b'{"v": 1}}', "no JSON: Extra data at character 9"),
        (b'{"v": 01}', "no JSON: Expecting ',' delimiter at character 8"),
        (b"{'v': 1}", "no JSON: Expecting property name enclosed in double quotes at character 2"),
        (b'{"v": 1,}', "no JSON: Expecting property name enclosed in double quotes at character 9"),
        (b'{"s": "a\x00b"}', "no JSON: Invalid control character at character 9"),
        (b'[{"v": 1}, {"v": 2}]', f'found [{{"v":1}},{{"v":2}}], wanted one JSON object a line; {_ARRAY}'),
        (b"5", "found 5, wanted a JSON object"),
        (b"null", "found null, wanted a JSON object"),
        (b'{"s": "\xe4"}', "found byte 0xe4 at byte 8, wanted UTF-8"),
        (b'\xff\xfe{\x00"\x00', "found byte 0xff at byte 1, wanted UTF-8"),
        (b'{"v": 1, "v": 1}', "v: found twice"),
        (b'{"u": ' + b"[" * 3_000 + b"]" * 3_000 + b"}",
         "found 3,001 levels within each other, wanted 200 at most (SLUICE_RECORD_DEPTH)"),
    ],
    ids=lambda one: str(one)[:40],
)  # fmt: skip
def test_what_is_no_object_is_held_and_told(record: bytes, detail: str) -> None:
    reader = JsonReader(schema=pa.schema([("v", pa.int32()), ("s", pa.string())]))
    for lines in (1, FEW + 1):
        rows = reader.read(pa.array([record] * lines, pa.binary())).to_pylist()
        assert {row["_detail"] for row in rows} == {detail}
        assert {row["_malformed"] for row in rows} == {record.decode(errors="backslashreplace")}


def test_blanks_and_a_byte_order_mark_around_a_record_and_brackets_in_texts_are_no_fault() -> None:
    reader = JsonReader(schema=pa.schema([("v", pa.string())]))
    text = "[" * 1000
    records = [
        b'\xef\xbb\xbf{"v": "a"}',
        b'\t{"v": "a"} \r',
        f'{{"u": 1, "v": "{text}"}}'.encode(),
        None,
        b"{}",
    ]
    rows = reader.read(pa.array(records, pa.binary())).to_pylist()
    assert [row["v"] for row in rows] == ["a", "a", text, None, None]
    assert {row["_malformed"] for row in rows} == {None}


@pytest.mark.parametrize(
    "record",
    [
        b'{"s": ' + b'{"a": ' * (200 - 1) + b"1" + b"}" * 200,
        b'{"v": ' + b'{"a": ' * (200 - 1) + b"1" + b"}" * 200,
        b'{"u": ' + b"[" * 600 + b'"' + b'\\"' * 300_000,
        b'{"v": ' + b"1" * 3_000_000 + b"}",
        b'{"d": 0.' + b"1" * 3_000_000 + b"}",
        b'{"d": 1e' + b"9" * 1_000_000 + b"}",
        b'{"m": {' + b"".join(b'"k%d": 1, ' % n for n in range(100_000)) + b'"k5": 2}}',
        b'{"s": "' + b"[{" * 1_000_000 + b'"}',
        b'{"t": "' + b"2026-" * 500_000 + b'"}',
    ],
    ids=(
        "deep text",
        "deep number",
        "unended",
        "digits",
        "fraction",
        "exponent",
        "map",
        "brackets",
        "moment",
    ),
)
def test_no_record_holds_or_ends_a_task(record: bytes) -> None:
    kinds = {
        "v": pa.int32(),
        "s": pa.string(),
        "d": pa.float64(),
        "t": MOMENT,
        "m": pa.map_(pa.string(), pa.int32()),
    }
    reader = JsonReader(schema=pa.schema(kinds))
    [row] = reader.read(pa.array([record], pa.binary())).to_pylist()
    assert row["_malformed"] is None or row["_detail"]


def test_json_has_no_values_of_some_types() -> None:
    for kind in (pa.duration("us"), pa.time64("us"), pa.map_(pa.int32(), pa.string())):
        for within in (kind, pa.list_(kind), pa.struct([("x", kind)])):
            assert converter(within) is None


def test_records_keep_their_order_wherever_the_odd_ones_are() -> None:
    reader = JsonReader(schema=pa.schema([("v", pa.int32()), ("t", MOMENT)]))
    odd = {
        0: "x",
        7: '{"v": "1"}',
        500: '{"v": 1.5}',
        501: '{"t": "nope"}',
        900: ' {"v": 900}',
        2000: '{"v": 2000, "u": 1}',
    }
    count = 10 * PIECE
    records = [odd.get(n, f'{{"v": {n}, "t": "2026-01-02T03:04:05Z"}}').encode() for n in range(count)]
    rows = reader.read(pa.array(records, pa.binary())).to_pylist()
    held = [0, 7, 500, 501]
    assert [row["v"] for row in rows] == [None if n in held else n for n in range(count)]
    assert [n for n, row in enumerate(rows) if row["_malformed"] is not None] == held
    assert [rows[n]["_malformed"] for n in held] == [odd[n] for n in held]


USUAL = '{"v": %d, "s": "a", "d": 0.5, "t": "2026-01-02T03:04:05Z", "n": "2026-01-02T03:04:05", "day": "2026-01-02"}'


@pytest.mark.parametrize(
    ("seen", "instead"),
    [
        ('"v": %d', '"v": "%d"'),
        ('"v": %d', '"v": %d.5'),
        ('"v": %d', '"v": 30000000000%d'),
        ('"v": %d', '"v" %d'),
        ('"v": %d', '"v": %d, "d": 1'),
        ('"d": 0.5', '"d": "low"'),
        ('"d": 0.5', '"d": 1e400'),
        ('"d": 0.5', '"d": NaN'),
        ('"s": "a"', '"s": 5'),
        ('"s": "a"', '"s": "\x01"'),
        ('"s": "a"', '"s": "\udcff"'),
        ('"t": "2026-01-02T03:04:05Z"', '"t": "01/02/2026"'),
        ('"t": "2026-01-02T03:04:05Z"', '"t": "2026-02-30T03:04:05Z"'),
        ('"t": "2026-01-02T03:04:05Z"', '"t": "0000-01-02T03:04:05Z"'),
        ('"t": "2026-01-02T03:04:05Z"', '"t": "0000-12-31T23:00:00-02:00"'),
        ('"n": "2026-01-02T03:04:05"', '"n": "2026-01-02T03:04:05Z"'),
        ('"day": "2026-01-02"', '"day": "2026-02-29"'),
        ('"day": "2026-01-02"', '"day": 5'),
        ("}", ""),
        (USUAL, "ERROR %d"),
    ],
    ids=str,
)
def test_records_that_are_unlike_their_neighbours_are_read_apart_and_those_alone(
    seen: str, instead: str
) -> None:
    kinds = {
        "v": pa.int32(),
        "s": pa.string(),
        "d": pa.float64(),
        "t": MOMENT,
        "n": pa.timestamp("us"),
        "day": pa.date32(),
    }
    reader = JsonReader(schema=pa.schema(kinds))
    odd = np.arange(10 * PIECE) % 90 == 7
    lines = [(USUAL.replace(seen, instead) if is_odd else USUAL) % n for n, is_odd in enumerate(odd.tolist())]
    records = [line.encode("utf-8", "surrogateescape") for line in lines]
    one_by_one = reader._one_by_one(records, Counter())
    for _ in ("not met yet", "met before"):
        rows, apart = reader._at_once(pa.array(records, pa.binary()), Counter())
        assert apart.tolist() == odd.tolist()
        assert_same(rows.filter(~apart).to_pylist(), one_by_one.filter(~odd).to_pylist())
        assert_same(reader.read(pa.array(records, pa.binary())).to_pylist(), one_by_one.to_pylist())


def taken_at_once(reader: JsonReader, record: bytes) -> pa.RecordBatch | None:
    """Read a record by Arrow's parser alone; None where that does not take it."""
    try:
        rows, odd = reader._parsed(pa.array([record], pa.binary()), Counter())
    except (_Unfit, pa.ArrowInvalid):
        return None
    return None if odd.any() else rows


def compared(records: list[bytes], bounds: Bounds = DEFAULT) -> int:
    """Read records one by one, all at once, and each by Arrow's parser alone; return how many that one took."""
    reader = JsonReader(schema=SCHEMA, bounds=bounds)
    unknown = Counter[str]()
    one_by_one = reader._one_by_one(records, unknown)
    drift = Drift()
    rows = reader.read(pa.array(records, pa.binary()), drift).to_pylist()
    told = Counter[str]()
    for name, count in unknown.items():
        told[visible(name)] += count
    assert Drift.total([drift]).unknown == told
    assert_same(rows, one_by_one.to_pylist())
    plain = np.flatnonzero(reader._plain(pa.array(records, pa.binary())))
    parsed = [(n, found) for n in plain if (found := taken_at_once(reader, records[n]))]
    taken = pa.Table.from_batches(found for _, found in parsed)
    assert_same(taken.to_pylist(), one_by_one.take([n for n, _ in parsed]).to_pylist())
    return len(parsed)


@pytest.mark.long
def test_both_ways_of_reading_agree_on_hostile_records() -> None:
    records = hostile_records(seed=1, count=2000)
    assert compared(records) > len(records) / 10
    narrow = Bounds(record_bytes=250, record_fields=15, record_depth=3, number_digits=100, number_exponent=99)
    assert compared(records, narrow) > len(records) / 20


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_both_ways_of_reading_agree_on_very_many_hostile_records() -> None:
    records = hostile_records(seed=2, count=200_000)
    assert compared(records) > len(records) / 10


def unknown_of(records: list[str], **how: Any) -> tuple[list[dict[str, Any]], Drift]:
    reader = JsonReader(schema=pa.schema([("v", pa.int32()), *how.pop("more", ())]), **how)
    drift = Drift()
    rows = reader.read(pa.array([one.encode() for one in records], pa.binary()), drift).to_pylist()
    return rows, Drift.total([drift])


@pytest.mark.parametrize("times", [1, FEW, PIECE * 2])
def test_members_that_the_schema_does_not_name_are_counted(times: int) -> None:
    records = [
        '{"v": 1, "new": "a", "other": null}',
        '{"new": 5, "v": 2}',
        '{"v": 3}',
        '{"v": "x", "new": 1}',
    ] * times
    rows, drift = unknown_of(records)
    assert [row["v"] for row in rows] == [1, 2, 3, None] * times
    assert drift.unknown == {"new": 2 * times}, "of records that are rows, where it has a value"
    rows, drift = unknown_of(['{"v": 1, "a": {"b": 1}, "c": [1]}'] * times)
    assert drift.unknown == {"a": times, "c": times} and not drift.missing
    assert [row["v"] for row in rows] == [1] * times
    assert unknown_of(['{"v": 1}'] * times)[1] == Drift()


@pytest.mark.parametrize("times", [1, FEW + 1])
def test_members_that_the_schema_does_not_name_are_kept_or_held_where_that_is_asked_for(times: int) -> None:
    records = [
        '{"v": 1, "new": 1.50, "more": {"b": "\u00e4"}}',
        '{"v": 2}',
        '{"v": 3, "half": "\\ud83d"}',
    ] * times
    rows, drift = unknown_of(records, more=[("_unknown", pa.string())])
    assert [row["_unknown"] for row in rows] == ['{"new":1.50,"more":{"b":"ä"}}', None, None] * times
    assert [row["v"] for row in rows] == [1, 2, None] * times
    assert rows[2]["_detail"] == r"found half of a surrogate pair, \ud83d, wanted Unicode"
    assert drift.unknown == {"new": times, "more": times}
    rows, drift = unknown_of(records, holds_unknown=True)
    assert [row["v"] for row in rows] == [None, 2, None] * times and drift == Drift()
    assert rows[0]["_detail"] == 'new: not in the schema, and unknown is "hold"'
    rows, _ = unknown_of(['{"v": 1, "\\ud83d": 1}'] * times, holds_unknown=True)
    assert rows[0]["_detail"] == r'\ud83d: not in the schema, and unknown is "hold"', "no text can have it"


def test_many_names_are_told_by_the_most_frequent() -> None:
    names = [f"key {number}" for number in range(300)] + ["n" * 500]
    records = [json.dumps({"v": 1, "always": 1, name: 1}) for name in names]
    drift = unknown_of(records)[1]
    assert len(drift.unknown) == 100 and drift.unknown["always"] == len(names)
    assert max(map(len, drift.unknown)) <= 100
    assert unknown_of(['{"v": 1, "nul\\u0000 \\ud83d\\u001b": 1}'])[1].unknown == {"nul\\x00 \\ud83d\\x1b": 1}


def test_records_that_each_have_a_member_of_their_own_take_no_column_of_all_records_each() -> None:
    before = pa.default_memory_pool().bytes_allocated()
    rows, drift = unknown_of([f'{{"v": {n}, "n{n}": 1, "all": 1}}' for n in range(10_000)])
    assert [row["v"] for row in rows] == list(range(10_000))
    assert drift.unknown["all"] == 10_000 and len(drift.unknown) == 100
    assert pa.default_memory_pool().max_memory() - before < 300_000_000
