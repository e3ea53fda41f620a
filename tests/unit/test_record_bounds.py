"""A record at a bound is read, and one beyond it is held and told: by Arrow's parser, one by one, and in CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from etl.common.record_bounds import KEPT_BYTES, Bounds
from etl.common.settings import Settings
from etl.sources.csv_records.blocks import CsvReader
from etl.sources.csv_records.dialect import Dialect
from etl.sources.csv_records.files import CsvFiles
from etl.sources.json_records.arrays import JsonArrays
from etl.sources.json_records.blocks import FEW, PIECE, JsonReader
from etl.sources.raw.lines import Lines
from etl.sources.unreadable import FileUnfit
from tests.support.parts import Land

SCHEMA = pa.schema(
    {"v": pa.int32(), "s": pa.string(), "d": pa.decimal128(10, 2), "a": pa.list_(pa.list_(pa.int32()))}
)
SMALL = Bounds(record_bytes=2000, record_fields=500, record_depth=3, number_digits=100, number_exponent=99)
ZEROS = "0" * 97


def padded(size: int) -> str:
    """Return a record of so many bytes, some characters of which have two."""
    text = '{"v":1,"s":"ä"}'
    return text.replace("ä", "ä" + "x" * (size - len(text.encode())))


def numbers(count: int) -> str:
    """Return a record of so many fields."""
    return f'{{"a":[[{",".join("1" * (count - 2))}]]}}'


BOUNDS: list[tuple[str, str, str]] = [  # a record at a bound, one beyond it, and what is told of that one
    (
        padded(2000), padded(2001),
        "found 2,001 bytes or more, wanted 2,000 at most (SLUICE_RECORD_BYTES); the first 2,000 are kept",
    ),
    (numbers(500), numbers(501), "found 501 fields or more, wanted 500 at most (SLUICE_RECORD_FIELDS)"),
    ('{"a":[[1]]}', '{"a":[[[1]]]}', "found 4 levels within each other, wanted 3 at most (SLUICE_RECORD_DEPTH)"),
    ('{"u":[{}],"v":1}', '{"u":[{"x":[]}],"v":1}',
     "found 4 levels within each other, wanted 3 at most (SLUICE_RECORD_DEPTH)"),
    (f'{{"d":1.{ZEROS}00}}', f'{{"d":1.{ZEROS}000}}', "d: found 101 digits, wanted 100 at most (SLUICE_NUMBER_DIGITS)"),
    ('{"d":0e99}', '{"d":0e100}', "d: found an exponent of 100, wanted 99 at most (SLUICE_NUMBER_EXPONENT)"),
    ('{"d":"0e-0099"}', '{"d":"0e-100"}', "d: found an exponent of 100, wanted 99 at most (SLUICE_NUMBER_EXPONENT)"),
    ('{"d":"+0E0"}', f'{{"d":"+0E{"9" * 1000}"}}',
     "d: found an exponent of 1,000 digits, wanted 99 at most (SLUICE_NUMBER_EXPONENT)"),
]  # fmt: skip


@pytest.mark.parametrize("lines", [1, FEW + 1])
@pytest.mark.parametrize(("within", "beyond", "detail"), BOUNDS, ids=lambda one: str(one)[:40])
def test_json_at_a_bound_is_read_and_beyond_it_is_held(
    within: str, beyond: str, detail: str, lines: int
) -> None:
    reader = JsonReader(schema=SCHEMA, bounds=SMALL)
    rows = reader.read(pa.array([one.encode() for one in [within, beyond] * lines], pa.binary())).to_pylist()
    [good] = {str({**row, "_detail": None}) for row in rows[::2]}  # the first tells of unknown members
    assert rows[0]["_malformed"] is None and good != str(dict.fromkeys(reader._rows.names)), rows[0]
    assert {row["_detail"] for row in rows[1::2]} == {detail}
    assert all(row[name] is None for row in rows[1::2] for name in SCHEMA.names)
    kept = beyond.encode()[: SMALL.record_bytes].decode()
    assert {row["_malformed"] for row in rows[1::2]} == {kept}


@pytest.mark.parametrize(
    "record", [padded(2000), numbers(500), '{"a":[[1]]}', '{"v":1,"u":[{}]}', '{"d":1.25}']
)
def test_arrows_parser_takes_what_is_at_a_bound(record: str) -> None:
    reader, many = JsonReader(schema=SCHEMA, bounds=SMALL), pa.array([record.encode()] * FEW, pa.binary())
    assert reader._plain(many).all()
    _, odd = reader._parsed(many, Counter())
    assert not odd.any()


def test_signs_of_fields_and_levels_within_texts_are_none() -> None:
    record = '{"s":"' + '[{,\\"' * 300 + '","v":1}'
    for lines in (1, FEW + 1):
        rows = JsonReader(schema=SCHEMA, bounds=SMALL).read(pa.array([record.encode()] * lines, pa.binary()))
        assert rows["v"].to_pylist() == [1] * lines


def test_zeros_before_a_number_are_no_digits() -> None:
    for lines in (1, FEW + 1):
        record = f'{{"d":"{"0" * 1500}5"}}'.encode()
        rows = JsonReader(schema=SCHEMA, bounds=SMALL).read(pa.array([record] * lines, pa.binary()))
        assert rows["d"].to_pylist() == [Decimal("5.00")] * lines


def test_a_schema_that_is_deeper_than_the_bound_is_read_one_by_one() -> None:
    reader = JsonReader(schema=SCHEMA, bounds=replace(SMALL, record_depth=2))
    records = [b'{"a":[]}', b'{"a":[[1]]}'] * (FEW + 1)
    rows = reader.read(pa.array(records, pa.binary()))
    assert rows["a"].to_pylist()[:2] == [[], None]
    assert (
        rows["_detail"].to_pylist()[1]
        == "found 3 levels within each other, wanted 2 at most (SLUICE_RECORD_DEPTH)"
    )


def test_of_a_record_that_is_too_long_the_beginning_is_kept_in_whole_characters() -> None:
    bounds = Bounds(record_bytes=100_000)
    record = b'{"s":"' + "€".encode() * 40_000 + b'"}'
    for reader in (
        JsonReader(schema=SCHEMA, bounds=bounds).read,
        CsvReader(schema=SCHEMA.remove(3), dialect=Dialect(), bounds=bounds).read_headless,
    ):
        [row] = reader(pa.array([record], pa.binary())).to_pylist()
        assert row["_malformed"] == '{"s":"' + "€" * 21_843, (
            "of 65,536 bytes the last is of a character that goes on"
        )
        assert row["_detail"] == (
            "found 120,008 bytes or more, wanted 100,000 at most (SLUICE_RECORD_BYTES); the first 65,536 are kept"
        )
    assert KEPT_BYTES == 65_536


LINES: list[tuple[str, str, str]] = [
    ("1,ä" + "x" * 1992 + ",1.5", "1,ä" + "x" * 1993 + ",1.5", BOUNDS[0][2]),
    (f"1,x,1.{ZEROS}00", f"1,x,1.{ZEROS}000", BOUNDS[4][2]),
    ("1,x,0e99", "1,x,0e100", BOUNDS[5][2]),
    ("1,x,1", "1" + ",x" * 500, "found 501 fields or more, wanted 500 at most (SLUICE_RECORD_FIELDS)"),
    ("1,x,1", "1" + ",x" * 499, "found 500 fields, wanted 3"),
    ("0" * 200 + "1,x,1", "0" * 200 + "1,x,y", 'd: found "y", wanted decimal(10,2)'),
]  # fmt: skip


@pytest.mark.parametrize(("within", "beyond", "detail"), LINES, ids=lambda one: str(one)[:40])
def test_csv_at_a_bound_is_read_and_beyond_it_is_held(within: str, beyond: str, detail: str) -> None:
    for quote in ('"', ""):
        for sep in (",", "||"):  # which Arrow's parser does not part
            options = {"sep": sep, "quote": quote}
            longer = SMALL.record_bytes + (2 * (len(sep) - 1) if "xxx" in within else 0)
            reader = CsvReader(
                schema=SCHEMA.remove(3),
                dialect=Dialect.of(options),
                bounds=replace(SMALL, record_bytes=longer),
            )
            given = [one.replace(",", sep).encode() for one in (within, beyond)]
            good, bad = reader.read_headless(pa.array(given, pa.binary())).to_pylist()
            assert (good["v"], good["_malformed"], good["_detail"]) == (1, None, None)
            told = detail.replace("2,001", f"{longer + 1:,}").replace("2,000", f"{longer:,}")
            assert (bad["v"], bad["_detail"]) == (None, told)
            assert bad["_malformed"] == given[1][:longer].decode()


@pytest.mark.parametrize("width", [500, 501])
def test_a_file_of_as_many_columns_as_a_record_may_have_is_read(width: int) -> None:
    names = [f"c{number}" for number in range(width)]
    schema = pa.schema([(name, pa.int32()) for name in names])
    reader = CsvReader(schema=schema, dialect=Dialect(), bounds=SMALL)
    line = ",".join("1" * width).encode()
    rows = reader.read_headless(pa.array([line, b"1"], pa.binary()))
    found, short = rows["_detail"].to_pylist()
    assert found == (
        None if width == 500 else "found 501 fields or more, wanted 500 at most (SLUICE_RECORD_FIELDS)"
    )
    assert short == f"found 1 of {width} fields"


def test_a_first_line_that_is_too_long_is_no_header(tmp_path: Path) -> None:
    batch = Land(tmp_path)(b"v," * 600_000 + b"\n1")
    files = CsvFiles(reader=CsvReader(schema=SCHEMA.remove(3), dialect=Dialect()), header=True, lines=Lines())
    with pytest.raises(FileUnfit, match="its first line is longer than 1,048,576 bytes"):
        list(files.rows(iter([batch])))


@pytest.mark.parametrize(
    ("element", "detail"),
    [
        (padded(2001), BOUNDS[0][2]),
        (numbers(501), BOUNDS[1][2]),
        ('{"u":' + "[" * 100_000 + "]" * 100_000 + "}",
         "found 200,006 bytes or more, wanted 2,000 at most (SLUICE_RECORD_BYTES); the first 2,000 are kept"),
        ('{"u":' + "[" * 400 + "]" * 400 + "}",
         "found 401 levels within each other, wanted 3 at most (SLUICE_RECORD_DEPTH)"),
        ('{"v": x}', "no JSON: Expecting value at character 7"),
        ("9" * 5000, "found 5,000 bytes or more, wanted 2,000 at most (SLUICE_RECORD_BYTES); the first 2,000 are kept"),
    ],
    ids=lambda one: str(one)[:40],
)  # fmt: skip
def test_an_element_of_an_array_beyond_a_bound_is_held_by_itself(
    element: str, detail: str, tmp_path: Path
) -> None:
    batch = Land(tmp_path)(f'[{{"v": 1}}, {element}, {{"v": 2}}, {padded(2000)}]')
    arrays = JsonArrays(reader=JsonReader(schema=SCHEMA, bounds=SMALL), lines=Lines())
    rows = [row for some in arrays.rows(iter([batch])) for row in some.to_pylist()]
    assert [(row["v"], row["_detail"]) for row in rows] == [(1, None), (None, detail), (2, None), (1, None)]


def test_a_level_of_the_deepest_that_can_be_set_has_frames_enough() -> None:
    """Read as deep as the setting goes below as many frames as no worker of Spark has."""
    deepest = settings_range("record_depth")[1]
    kind: pa.DataType = pa.int32()
    for _ in range(deepest - 1):
        kind = pa.struct([("a", kind)])
    record = b'{"a":' * deepest + b"1" + b"}" * deepest
    for schema in (pa.schema([("a", pa.string())]), pa.schema([("a", kind)])):
        reader = JsonReader(schema=schema, bounds=Bounds(record_depth=deepest))
        row = below(100, lambda reader=reader: reader.read(pa.array([record], pa.binary())))
        assert row["_detail"].to_pylist() == [None]


def below(frames: int, work: Callable[[], Any]) -> Any:
    return work() if frames == 0 else below(frames - 1, work)


def test_very_many_members_beside_the_schema_take_no_column_of_many_records_each() -> None:
    wide = "".join(f',"n{number}":1' for number in range(100_000))
    records = [f'{{"v":{n}{wide if n == 7 else ""},"u":1}}'.encode() for n in range(2 * PIECE)]
    before = pa.default_memory_pool().max_memory()
    rows = JsonReader(schema=SCHEMA).read(pa.array(records, pa.binary()))
    assert rows["v"].to_pylist() == list(range(2 * PIECE))
    assert pa.default_memory_pool().max_memory() - before < 50_000_000


def test_each_bound_is_a_setting_of_the_same_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings().bounds == Bounds()
    for one in fields(Bounds):
        lowest, highest = settings_range(one.name)
        assert lowest < getattr(Bounds, one.name) < highest
        for value in (lowest, highest):
            monkeypatch.setenv(f"SLUICE_{one.name.upper()}", str(value))
            assert Settings().bounds == replace(Bounds(), **{one.name: value})
        for value in (lowest - 1, highest + 1):
            monkeypatch.setenv(f"SLUICE_{one.name.upper()}", str(value))
            with pytest.raises(ValidationError, match=one.name):
                Settings()
        monkeypatch.delenv(f"SLUICE_{one.name.upper()}")


def settings_range(name: str) -> tuple[int, int]:
    """Return the lowest and the highest value that a setting takes."""
    low, high = Settings.model_fields[name].metadata
    return low.ge, high.le
