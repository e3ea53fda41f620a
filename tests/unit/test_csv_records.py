"""A CSV value becomes the declared type as docs/reading.md says, or its record is malformed and says why."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from etl.pipeline.csv_options import option_problems
from etl.sources.csv_records.blocks import CsvReader
from etl.sources.csv_records.dialect import Dialect
from etl.sources.csv_records.header import Layout
from etl.sources.csv_records.values import converter

UTC = dt.UTC
MOMENT = pa.timestamp("us", tz="UTC")
NAIVE = pa.timestamp("us")
DECIMAL = pa.decimal128(10, 2)


def read(kind: pa.DataType, text: str, **options: str) -> dict[str, Any]:
    """Read a record of the value and a further one; by Arrow's parser and without it alike."""
    schema = pa.schema([("v", kind), ("n", pa.int32())])
    reader = CsvReader(schema=schema, dialect=Dialect.of({"sep": ";", **options}))
    line = f"{text};7".encode("utf-8", "surrogatepass")
    rows = reader.read(
        pa.array([line, b'"1";"7";"8"', line], pa.binary()), Layout.of_schema(schema.names)
    ).to_pylist()
    assert json.dumps(rows[0], default=str) == json.dumps(rows[2], default=str)
    assert rows[1]["_detail"] == "found 3 fields, wanted 2"
    row: dict[str, Any] = rows[0]
    assert row.pop("n") == (7 if row["_malformed"] is None else None)
    return row


TAKEN: list[tuple[pa.DataType, str, dict[str, str], Any]] = [
    (pa.string(), "a", {}, "a"),
    (pa.string(), " a ", {}, " a "),
    (pa.string(), '"a;""b"""', {}, 'a;"b"'),
    (pa.string(), '5" pipe', {}, '5" pipe'),
    (pa.string(), "", {}, None),
    (pa.string(), '""', {}, None),
    (pa.string(), "NULL", {"nullValue": "NULL"}, None),
    (pa.string(), '"a', {"quote": ""}, '"a'),
    (pa.string(), '"a\\"b"', {"escape": "\\"}, 'a"b'),
    (pa.string(), '"C:\\temp"', {"escape": "\\"}, "C:\\temp"),
    (pa.string(), '"C:\\\\"', {"escape": "\\"}, "C:\\"),
    (pa.string(), ' "a;b" ', {"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}, "a;b"),
    (pa.int32(), ' "1"', {"ignoreLeadingWhiteSpace": "true"}, 1),
    (pa.string(), ' "a"', {}, ' "a"'),
    (pa.string(), '"a', {"quote": "\0"}, '"a'),
    (pa.string(), "  a ", {"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}, "a"),
    (pa.string(), "1.10", {}, "1.10"),
    (pa.int8(), "-128", {}, -128),
    (pa.int16(), "32767", {}, 32767),
    (pa.int32(), "+5", {}, 5),
    (pa.int32(), "007", {}, 7),
    (pa.int32(), '"12"', {}, 12),
    (pa.int64(), "-9223372036854775808", {}, -(2**63)),
    (pa.int64(), "1.234.567", {"thousands": ".", "decimal": ","}, 1234567),
    (pa.float64(), "1", {}, 1.0),
    (pa.float64(), "-1.5e-3", {}, -0.0015),
    (pa.float64(), ".5", {}, 0.5),
    (pa.float64(), "0.1", {}, 0.1),
    (pa.float64(), f"0.{'1' * 2000}", {}, 1 / 9),
    (pa.float64(), "1e-100000", {}, 0.0),
    (pa.int32(), f"+{'0' * 5000}7", {}, 7),
    (pa.float64(), "-0", {}, -0.0),
    (pa.float64(), "NaN", {}, math.nan),
    (pa.float64(), "-Infinity", {}, -math.inf),
    (pa.float64(), "1,5", {"decimal": ","}, 1.5),
    (pa.float32(), "1.00000005960464477540", {}, 1.0000001192092896),
    (DECIMAL, "12.5", {}, Decimal("12.50")),
    (DECIMAL, "12.500", {}, Decimal("12.50")),
    (DECIMAL, "1.25e1", {}, Decimal("12.50")),
    (DECIMAL, "+.5", {}, Decimal("0.50")),
    (DECIMAL, "99999999.99", {}, Decimal("99999999.99")),
    (DECIMAL, "12,50", {"decimal": ","}, Decimal("12.50")),
    (DECIMAL, "1.234,56", {"decimal": ",", "thousands": "."}, Decimal("1234.56")),
    (DECIMAL, "1,234.56", {"thousands": ","}, Decimal("1234.56")),
    (pa.decimal128(5, 0), "123", {}, Decimal(123)),
    (pa.decimal128(3, 3), "0.125", {}, Decimal("0.125")),
    (pa.bool_(), "true", {}, True),
    (pa.bool_(), "FALSE", {}, False),
    (pa.date32(), "2024-02-29", {}, dt.date(2024, 2, 29)),
    (pa.date32(), "2023-12-31", {}, dt.date(2023, 12, 31)),
    (pa.date32(), "0001-01-01", {}, dt.date(1, 1, 1)),
    (pa.date32(), "31.1.2026", {"dateFormat": "d.M.yyyy"}, dt.date(2026, 1, 31)),
    (pa.date32(), "01/31/2026", {"dateFormat": "MM/dd/yyyy"}, dt.date(2026, 1, 31)),
    (MOMENT, "2026-01-02T03:04:05Z", {}, dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (MOMENT, "2026-01-02 03:04:05.120+02:00", {}, dt.datetime(2026, 1, 2, 1, 4, 5, 120000, tzinfo=UTC)),
    (MOMENT, "2026-01-02 03:04:05", {}, dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    (MOMENT, "2026-01-02T03+01", {}, dt.datetime(2026, 1, 2, 2, tzinfo=UTC)),
    (MOMENT, "2026-01-02T03:04:05.123456789Z", {}, dt.datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
    (MOMENT, "2026-01-02", {}, dt.datetime(2026, 1, 2, tzinfo=UTC)),
    (MOMENT, "9999-12-31T23:59:59Z", {}, dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    (MOMENT, "02.01.2026 03:04", {"timestampFormat": "dd.MM.yyyy HH:mm"}, dt.datetime(2026, 1, 2, 3, 4, tzinfo=UTC)),
    (MOMENT, "20260102T030405+01:00", {"timestampFormat": "yyyyMMdd'T'HHmmssXXX"},
     dt.datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)),
    (NAIVE, "2026-01-02T03:04:05.5", {}, dt.datetime(2026, 1, 2, 3, 4, 5, 500000)),  # noqa: DTZ001
    (pa.binary(), "ä", {}, "ä".encode()),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "options", "expected"), TAKEN, ids=lambda one: str(one)[:40])
def test_a_value_is_what_the_record_says(
    kind: pa.DataType, text: str, options: dict[str, str], expected: Any
) -> None:
    row = read(kind, text, **options)
    assert json.dumps(row, default=str) == json.dumps(
        {"v": expected, "_malformed": None, "_detail": None}, default=str
    )


HELD: list[tuple[pa.DataType, str, dict[str, str], str]] = [
    (pa.string(), '"a', {}, 'found "\\"a;7", wanted value 1 to have a quote at either end, or at none'),
    (pa.string(), '"a"b', {}, 'found "\\"a\\"b;7", wanted value 1 to have a quote at either end, or at none'),
    (pa.string(), ' "a" ', {"ignoreLeadingWhiteSpace": "true"},
     'found " \\"a\\" ;7", wanted value 1 to have a quote at either end, or at none'),
    (pa.string(), '"a" ', {}, 'found "\\"a\\" ;7", wanted value 1 to have a quote at either end, or at none'),
    (pa.string(), "a;b", {}, "found 3 fields, wanted 2"),
    (pa.int32(), "1.0", {}, 'v: found "1.0", wanted int, from -2147483648 to 2147483647'),
    (pa.int32(), "0x10", {}, 'v: found "0x10", wanted int, from -2147483648 to 2147483647'),
    (pa.int32(), " 1", {}, 'v: found " 1", wanted int, from -2147483648 to 2147483647'),
    (pa.int32(), "٣", {}, 'v: found "٣", wanted int, from -2147483648 to 2147483647'),
    (pa.int32(), "1_000", {}, 'v: found "1_000", wanted int, from -2147483648 to 2147483647'),
    (pa.int32(), "1,000", {}, 'v: found "1,000", wanted int, from -2147483648 to 2147483647'),
    (pa.int32(), "12,34", {"thousands": ","}, 'v: found "12,34", wanted int, from -2147483648 to 2147483647'),
    (pa.int8(), "200", {}, 'v: found "200", wanted tinyint, from -128 to 127'),
    (pa.int64(), "9" * 30, {}, f'v: found "{"9" * 30}", wanted bigint, from -{2**63} to {2**63 - 1}'),
    (pa.float64(), "1.5f", {}, 'v: found "1.5f", wanted double'),
    (pa.float64(), "0x1p3", {}, 'v: found "0x1p3", wanted double'),
    (pa.float64(), "nan", {}, 'v: found "nan", wanted double'),
    (pa.float64(), "inf", {}, 'v: found "inf", wanted double'),
    (pa.float64(), "1e400", {}, 'v: found "1e400", wanted a number within the range of double'),
    (pa.float64(), "1.5", {"decimal": ","}, 'v: found "1.5", wanted double'),
    (pa.float32(), "1e40", {}, 'v: found "1e40", wanted a number within the range of float'),
    (DECIMAL, "12,50", {}, 'v: found "12,50", wanted decimal(10,2)'),
    (DECIMAL, "1.234,56", {}, 'v: found "1.234,56", wanted decimal(10,2)'),
    (DECIMAL, "1.234.56", {"thousands": ".", "decimal": ","}, 'v: found "1.234.56", wanted decimal(10,2)'),
    (DECIMAL, "12.505", {}, 'v: found "12.505", wanted decimal(10,2)'),
    (DECIMAL, "100000000", {}, 'v: found "100000000", wanted decimal(10,2)'),
    (DECIMAL, "1e100000000", {}, "v: found an exponent of 100,000,000, wanted 999 at most (SLUICE_NUMBER_EXPONENT)"),
    (DECIMAL, "$5", {}, 'v: found "$5", wanted decimal(10,2)'),
    (pa.bool_(), "1", {}, 'v: found "1", wanted boolean: true or false'),
    (pa.bool_(), "yes", {}, 'v: found "yes", wanted boolean: true or false'),
    (pa.date32(), "44197", {}, 'v: found "44197", wanted a date, such as 2026-01-31'),
    (pa.date32(), "2026-1-2", {}, 'v: found "2026-1-2", wanted a date, such as 2026-01-31'),
    (pa.date32(), "2023-02-29", {}, 'v: found "2023-02-29", wanted a date: day is out of range for month'),
    (pa.date32(), "2023-04-31", {}, 'v: found "2023-04-31", wanted a date: day is out of range for month'),
    (pa.date32(), "2026-01-02T00:00:00", {}, 'v: found "2026-01-02T00:00:00", wanted a date, such as 2026-01-31'),
    (pa.date32(), "2026-01-31", {"dateFormat": "dd.MM.yyyy"}, 'v: found "2026-01-31", wanted a date as dd.MM.yyyy'),
    (pa.date32(), "31.02.2026", {"dateFormat": "dd.MM.yyyy"},
     'v: found "31.02.2026", wanted a date as dd.MM.yyyy: day is out of range for month'),
    (MOMENT, "1767322800", {}, 'v: found "1767322800", wanted a timestamp, such as 2026-01-31T23:59:59.123456Z'),
    (MOMENT, "10:30", {}, 'v: found "10:30", wanted a timestamp, such as 2026-01-31T23:59:59.123456Z'),
    (MOMENT, "2026-01-02T03:04:05 BST", {},
     'v: found "2026-01-02T03:04:05 BST", wanted a timestamp, such as 2026-01-31T23:59:59.123456Z'),
    (MOMENT, "2026-01-02T24:00:00Z", {}, 'v: found "2026-01-02T24:00:00Z", wanted a timestamp: hour must be in 0..23'),
    (MOMENT, "0001-01-01T00:00:00+01:00", {},
     'v: found "0001-01-01T00:00:00+01:00", wanted a timestamp: date value out of range'),
    (NAIVE, "2026-01-02T03:04:05Z", {},
     'v: found "2026-01-02T03:04:05Z", wanted a timestamp_ntz, such as 2026-01-31T23:59:59.123456'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "options", "detail"), HELD, ids=lambda one: str(one)[:40])
def test_what_is_no_value_is_held_and_says_why(
    kind: pa.DataType, text: str, options: dict[str, str], detail: str
) -> None:
    row = read(kind, text, **options)
    assert row == {"v": None, "_malformed": f"{text};7", "_detail": detail}


FIELDS = pa.schema([
    ("s", pa.string()), ("i", pa.int32()), ("l", pa.int64()), ("f", pa.float32()), ("d", pa.float64()), ("m", DECIMAL),
    ("b", pa.bool_()), ("day", pa.date32()), ("at", MOMENT), ("n", NAIVE),
])  # fmt: skip
TEXTS = (
    '', '""', '"', '""""', '"a', 'a"', 'a"b"', '"a"b', '"a;b"', "'", " ", "\t", "a b", "0", "-0", "+1", "1.", ".1",
    "1e5", "1E-3", "1e400", "1e39", "NaN", "nan", "Infinity", "-Infinity", "inf", "0x1F", "1f", "1d", "007",
    "2147483648", "-2147483648", "9223372036854775808", "12.50", "12,50", "12.505", "99999999.999", "1_000", "٣",
    "true", "False", "t", "1", "yes", "2024-02-29", "2023-02-29", "2023-04-31", "2023-12-31", "0000-01-01",
    "0001-01-01", "9999-12-31", "10000-01-01", "2026-1-2", "20260102", "2026-01-02T03", "2026-01-02T03:04",
    "2026-01-02 03:04:05", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+0130", "2026-01-02T03:04:05-18:30",
    "2026-01-02T03:04:05+23:59", "2026-01-02T03:04:05.1234567Z", "2026-01-02T24:00:00", "2026-01-02T03:04:60Z",
    "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2026-01-02t03:04:05z", "\x00", "\x0b", "é", "\ud83d",
    "1.234,5", "1.234", "12.34", "-1.234.567", "1.234.5678", "1,5", "31/01/2026", "1/2/2026", "30/02/2026", "29/02/2024",
    "31/01/2026 10:20:30.123456789", "31/01/2026 24:00:00.000000000", "01/01/0001 00:00:00.0 +01:00",
    "31/01/2026 10:20:30.5 +01:00", "31/01/2026 10:20:30.5 +24:00", "31/01/2026 10:20:30.5 Z", "2026-01-31", "2026",
    '"a\\"b"', '"a\\\\"', "a\\", '"a||b"', "a||", "|", "\x1f", '"|"', '"\x1f"',
    "\ufeff", "\u2028", '"1"', '"2026-01-02"', '"tr""ue"', "NULL", "\\N", "-", "--1", "1-", "12 ", " 12",
)  # fmt: skip


@pytest.mark.parametrize("options", [{"sep": ";"}, {"sep": "\t", "nullValue": "NULL"}, {"sep": ";", "quote": "'"},
    {"sep": "||"}, {"sep": "||", "quote": ""}, {"sep": ";", "escape": "\\"}, {"sep": "\0"},
    {"sep": ";", "ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"},
    {"sep": "||", "ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}, {"sep": "||", "quote": "'"},
    {"sep": "||", "escape": "\\"},
    {"sep": ";", "decimal": ",", "thousands": "."}, {"sep": ";", "decimal": ","}, {"sep": ";", "thousands": ","},
    {"sep": ";", "dateFormat": "dd/MM/yyyy", "timestampFormat": "dd/MM/yyyy HH:mm:ss.S XXX",
     "timestampNTZFormat": "dd/MM/yyyy HH:mm:ss.SSSSSSSSS"},
    {"sep": ";", "dateFormat": "d/M/yyyy", "timestampFormat": "d/M/yyyy", "timestampNTZFormat": "yyyy-M-d"},
    {"sep": ";", "dateFormat": "dd/MM/yyyy HH:mm:ss.SSSSSSSSS", "timestampFormat": "yyyy'-'MM-dd"}])  # fmt: skip
def test_many_records_are_read_as_each_by_itself(options: dict[str, str]) -> None:
    dice = random.Random(str(options))
    dialect = Dialect.of(options)
    reader = CsvReader(schema=FIELDS, dialect=dialect)
    layout = Layout.of_schema(FIELDS.names)
    lines = []
    for _ in range(5000):
        # Most records have one odd value alone, or none would be good as a whole.
        values = [
            dice.choice(TEXTS) if dice.random() < 0.15 else ""
            for _ in range(dice.choice([10] * 20 + [9, 11]))
        ]
        lines.append(dialect.sep.join(values).encode("utf-8", "surrogatepass"))
    found = reader.read(pa.array(lines, pa.binary()), layout).to_pylist()
    alone = [reader.read(pa.array([line], pa.binary()), layout).to_pylist()[0] for line in lines[:200]]
    for one, other, line in zip(found, alone, lines, strict=False):
        assert json.dumps(one, default=str) == json.dumps(other, default=str), line
    good = [row for row in found if row["_malformed"] is None]
    assert 1000 < len(good) < 4900
    for line, row in zip(lines, found, strict=True):
        expected = _by_hand(line, reader)
        seen = None if row["_malformed"] is not None else [row[name] for name in FIELDS.names]
        assert str(seen) == str(expected), line


def _by_hand(line: bytes, reader: CsvReader) -> list[Any] | None:
    """Read a record by the slow way alone; None: it is malformed."""
    try:
        values = reader.dialect.split(line.decode())
        if len(values) != len(FIELDS):
            return None
        empty = ("", reader.dialect.null)
        return [
            None if text in empty else pa.scalar(convert(text), field.type).as_py()
            for value, field in zip(values, FIELDS, strict=True)
            for text in [value.strip(" \t\v\f\r\n") if reader.dialect.trim_left else value]
            for convert in [converter(field.type, reader.dialect)]
            if convert is not None
        ]
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"encoding": "utf-7"}, "encoding 'utf-7' not among utf-8, utf-16"),
        ({"quote": "''"}, "quote \"''\" must be 0 to 1 character long"),
        ({"multiLine": "yes"}, "multiLine 'yes' must be 'true' or 'false'"),
        ({"dateFormat": "dd MMM yyyy"}, "dateFormat 'dd MMM yyyy': MMM is none of yyyy, MM, M, dd"),
        ({"dateFormat": "dd.MM"}, "year, month and day are needed"),
        ({"timestampNTZFormat": "yyyy-MM-dd XXX"}, "XXX, a zone, is for timestampFormat alone"),
        ({"thousands": "."}, "decimal and thousands are both '.'"),
        ({"multiLine": "true", "lineSep": "|"}, "lineSep and multiLine are both set"),
        ({"sep": "|", "lineSep": "|"}, "sep and lineSep are both '|'"),
        ({"sep": ";", "escape": ";"}, "sep and escape are both ';'"),
        ({"sep": '";"'}, "sep '\";\"' and quote '\"': one is in the other"),
        ({"sep": "\r\n"}, "sep '\\r\\n' has a line break, which ends a record"),
    ],
)
def test_options_that_can_not_be_are_told(options: dict[str, str], said: str) -> None:
    [found] = option_problems(options)
    assert said in found


@pytest.mark.parametrize(
    "options",
    [{"quote": ""}, {"decimal": ","}, {"thousands": ","}, {"sep": " "}, {"sep": "\\", "quote": "'"}],
)
def test_options_that_can_be_are_not_refused(options: dict[str, str]) -> None:
    assert option_problems(options) == []


def test_the_columns_of_a_wide_file_are_found_at_once() -> None:
    names = [f"c{number}" for number in range(20_000)]
    layout = Layout.of_header([*names[::-1], "more"], names)
    assert (list(layout.positions), layout.unknown) == ([*range(20_000)][::-1], [("more", 20_000)])


@pytest.mark.parametrize("odd", [0, 1, 2, 39, [0, 39], [37, 38, 39]])
def test_records_of_one_column_are_read_whichever_of_them_are_malformed(odd: int | list[int]) -> None:
    schema = pa.schema([("s", pa.string())])
    at = [odd] if isinstance(odd, int) else odd
    lines = [b'"x' if number in at else b"x" for number in range(40)]
    rows = CsvReader(schema=schema, dialect=Dialect()).read_headless(pa.array(lines, pa.binary())).to_pylist()
    assert [row["_malformed"] for row in rows] == ['"x' if number in at else None for number in range(40)]
    assert [row["s"] for row in rows] == [None if number in at else "x" for number in range(40)]
