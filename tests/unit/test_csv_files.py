"""A CSV file is read by its own header, in its own encoding, in parts or as a whole."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem

from etl.sources.counts import Drift
from etl.sources.csv_records.blocks import CsvReader
from etl.sources.csv_records.dialect import Dialect
from etl.sources.csv_records.files import CsvFiles
from etl.sources.csv_records.header import read_header
from etl.sources.raw.lines import Lines
from etl.sources.unreadable import FileUnfit, FileUnread
from tests.support.parts import Land


@pytest.fixture
def land(tmp_path: Path) -> Land:
    return Land(tmp_path)


def rows_of(
    *batches: pa.RecordBatch,
    header: bool = True,
    schema: pa.Schema | None = None,
    drift: Drift | None = None,
    **options: str,
) -> Any:
    reader = CsvReader(
        schema=schema or pa.schema([("id", pa.int32()), ("s", pa.string())]), dialect=Dialect.of(options)
    )
    separator = options.get("lineSep")
    read = CsvFiles(reader=reader, header=header, lines=Lines(separator=separator and separator.encode()))
    return [row for batch in read.rows(iter(batches), drift) for row in batch.to_pylist()]


def values_of(*batches: pa.RecordBatch, **options: Any) -> list[tuple[Any, ...]]:
    return [
        (row["id"], row["s"]) if row["_malformed"] is None else (row["_malformed"],)
        for row in rows_of(*batches, **options)
    ]


def test_a_header_names_the_columns_of_its_file(land: Land) -> None:
    one = land(b"\xef\xbb\xbfS,id\nx,1\n\ny,2")
    two = land(b"\n \nid,s\n3,z\n")
    fewer, more = land(b'"id"\n4\n'), land(b"new,id,s\nn,5,w\n6,6\n")
    expected = [(1, "x"), (2, "y"), (3, "z"), (4, None), (5, "w"), ("6,6",)]
    assert values_of(one, two, fewer, more) == expected
    together = pa.Table.from_batches([one, two, fewer, more]).combine_chunks().to_batches()
    assert values_of(*together) == expected


def test_a_further_part_of_a_file_goes_by_its_header_too(land: Land) -> None:
    parts = land(b"s,id\nx,1\n" + b"y,2\n" * 3, cuts=[7, 10])
    expected = [(1, "x"), (2, "y"), (2, "y"), (2, "y")]
    assert values_of(parts) == values_of(*(parts.slice(at, 1) for at in range(3))) == expected
    assert values_of(parts.slice(2)) == [(2, "y")] * 2
    quoted = land(b'\xef\xbb\xbf\r\n"s","id"\r\nx,1\r\ny,2\r\n', cuts=[6, 20])
    assert values_of(quoted.slice(2)) == [(2, "y")]


def test_a_further_part_of_a_file_without_a_header_at_its_beginning_is_told(land: Land) -> None:
    blank = land(b"\n" * (1 << 20) + b"id,s\n1,x\n2,y\n", cuts=[(1 << 20) + 5])
    with pytest.raises(FileUnfit, match="its first 1,048,576 bytes are blank, so it has no header"):
        values_of(blank.slice(1))
    long = land("ü".encode() * (600 << 10) + b"\n1,x\n2,y\n", cuts=[(1200 << 10) + 2])
    for part in (long.slice(0, 1), long.slice(1)):
        with pytest.raises(
            FileUnfit, match="its first line is longer than 1,048,576 bytes, so it is no header"
        ):
            values_of(part)


def test_a_header_that_the_storage_does_not_give_is_no_damage(land: Land) -> None:
    parts = land(b"id,s\n1,x\n2,y\n", cuts=[9])
    next(iter(land.folder.iterdir())).unlink()
    with pytest.raises(FileUnread, match="FileNotFoundError"):
        values_of(parts.slice(1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b", "header is a, b; the schema is id, s: it lacks id; s, has a; b instead"),
        ("id,name", "header is id, name; the schema is id, s: it lacks s, has name instead"),
        ("id,s,ID,id", "names id 2 times"),
        ("1,x", "header is 1, x; the schema is id, s: it lacks id; s, has 1; x instead"),
        ('"id,s', "header is no record of CSV"),
        ("sep=;\nid;s", "its first line is Excel's, and no header: take it off"),
    ],
)
def test_a_file_of_another_shape_is_unfit(land: Land, text: str, said: str) -> None:
    batch = land(f"{text}\n1,x\n".encode())
    with pytest.raises(FileUnfit, match=said.replace("(", r"\(")):
        rows_of(batch)
    reader = CsvReader(schema=pa.schema([("id", pa.int32()), ("s", pa.string())]), dialect=Dialect())
    good = land(b"id,s\n1,x\n")
    tolerant = CsvFiles(reader=reader, header=True, lines=Lines(tolerant=True))
    assert [len(rows) for rows in tolerant.rows(iter([batch, good]))] == [1]


def test_files_without_a_header_have_the_columns_of_the_schema(land: Land) -> None:
    assert values_of(land(b"\xef\xbb\xbf1,x\n2\n"), header=False) == [(1, "x"), ("2",)]


def test_a_record_of_separators_alone_is_one(land: Land) -> None:
    assert values_of(land(b"id\ts\n1\tx\n\t\n \n\n"), sep="\t") == [(1, "x"), (None, None)]
    assert values_of(land(b"id s\n1 x\n \n\t\n"), sep=" ") == [(1, "x"), (None, None)]


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16le", "utf-16be", "windows-1252", "iso-8859-1", "us-ascii"]
)
def test_an_encoding_is_read_right(land: Land, encoding: str) -> None:
    text = "id,s\r\n1,plain\r\n" if encoding == "us-ascii" else "id,s\r\n1,plain\r\n2,größer\r\n"
    expected = [(1, "plain"), (2, "größer")][: text.count("\n") - 1]
    assert values_of(land(text.encode(encoding)), encoding=encoding) == expected


def test_bytes_of_another_encoding_are_held(land: Land) -> None:
    batch = land(b"id,s\n1,caf\xe9\n2,x\n")
    [bad, good] = rows_of(batch)
    assert (bad["_malformed"], bad["_detail"]) == ("1,caf\\xe9", "found byte 0xe9 at byte 6, wanted UTF-8")
    assert good["s"] == "x"
    [bad] = rows_of(land(b"id,s\n1,\x81\n"), encoding="windows-1252")
    assert bad["_detail"] == "found byte 0x81 at byte 3, wanted WINDOWS-1252"
    half = land("id,s\n1,x\n".encode("utf-16le") + b"\x31")
    with pytest.raises(FileUnfit, match="it is no UTF-16LE: truncated data at byte 19"):
        rows_of(half, encoding="utf-16le")


def test_bytes_of_another_encoding_are_held_as_they_are_in_a_file_that_is_read_as_a_whole(land: Land) -> None:
    [bad, good] = rows_of(land(b"id,s\n1,caf\xe9\n2,x\n"), multiLine="true")
    assert (bad["_malformed"], bad["_detail"]) == ("1,caf\\xe9", "found byte 0xe9 at byte 6, wanted UTF-8")
    assert good["s"] == "x"


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1", "windows-1252"])
@pytest.mark.parametrize("multiline", ["true", "false"])
def test_a_byte_order_mark_is_no_part_of_a_header_nor_a_record(
    land: Land, encoding: str, multiline: str, tmp_path: Path
) -> None:
    mark, file = b"\xef\xbb\xbf", tmp_path / "a.csv"
    file.write_bytes(mark + b"id,s\n1,x\n")
    options = {"encoding": encoding, "multiLine": multiline}
    assert values_of(land(file.read_bytes()), **options) == [(1, "x")]
    assert read_header(LocalFileSystem(), str(file), Dialect.of(options)) == ["id", "s"]
    assert values_of(land(mark), **options) == []
    assert values_of(land(mark + b"\nid,s\n1,x\n"), **options) == [(1, "x")]


@pytest.mark.parametrize("sign", ["|", "\r\n", "\n"])
def test_a_header_ends_where_a_record_does(land: Land, sign: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    text = f"s,id,\x0b\x85\u2028{sign}x,1,{sign}"
    file.write_bytes(text.encode())
    dialect = Dialect.of({"lineSep": sign})
    assert read_header(LocalFileSystem(), str(file), dialect) == ["s", "id", "\x0b\x85\u2028"]
    in_utf_16 = land(text.encode("utf-16"))
    assert values_of(in_utf_16, encoding="utf-16", lineSep=sign) == [(1, "x")]


def test_utf_16_has_no_values_over_lines_unless_that_is_declared(land: Land) -> None:
    batch = land('id,s\r\n1,"two\r\nlines"\r\n2,x'.encode("utf-16"))
    assert values_of(batch, encoding="utf-16") == [('1,"two',), ('lines"',), (2, "x")]
    assert values_of(batch, encoding="utf-16", multiLine="true") == [(1, "two\r\nlines"), (2, "x")]


def test_a_file_of_open_quotes_is_read_in_time_that_grows_with_its_size(land: Land) -> None:
    text = "id,s\n" + 'a","b\n' * 20_000 + '1,x\n2,"y\nz"\n'
    found = values_of(land(text), multiLine="true")
    assert (found[:2], found[-2:]) == ([('a","b',)] * 2, [(1, "x"), (2, "y\nz")])
    assert len(found) == 20_002


def test_a_value_may_have_line_breaks_where_that_is_declared(land: Land) -> None:
    text = 'id,s\r\n1,"two\nlines"\r\n2,"a ""b"";\r\nc"\n3,5" pipe\n4,"open\n5,last'
    found = values_of(land(text), multiLine="true")
    assert found == [(1, "two\nlines"), (2, 'a "b";\r\nc'), (3, '5" pipe'), ('4,"open',), (5, "last")]
    assert values_of(land(text.encode()))[:2] == [('1,"two',), ('lines"',)]


def test_records_over_lines_are_parted_as_by_other_readers(land: Land) -> None:
    dice = random.Random(7)
    alphabet = ["a", ",", '"', "\n", "\r\n", " ", "é", ""]
    rows = [[str(n), "".join(dice.choices(alphabet, k=dice.randrange(12)))] for n in range(1, 3000)]
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
        file = _Text()
        writer = csv.writer(file, quoting=quoting)
        writer.writerows([["id", "s"], *rows])
        expected = [(int(n), s or None) for n, s in rows]
        assert values_of(land("".join(file.parts)), multiLine="true") == expected


class _Text:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)


def test_a_number_may_have_the_separator_in_it_in_quotes(land: Land) -> None:
    rows = rows_of(land(b'id,s\n"1,234",x\n'), thousands=",")
    assert rows[0]["id"] == 1234


def test_columns_without_a_name_or_of_the_same_are_told_apart(land: Land) -> None:
    batch = land(b",id,s,x,,x\na,1,y,b,,c\n")
    names = {"(column 1)": "a", "x (column 4)": "b", "x (column 6)": "c"}
    drift = Drift()
    rows_of(batch, drift=drift)
    assert drift.unknown == Counter(dict.fromkeys(names, 1))
    [row] = rows_of(
        batch, schema=pa.schema([("id", pa.int32()), ("s", pa.string()), ("_unknown", pa.string())])
    )
    assert json.loads(row["_unknown"]) == names


def test_columns_that_one_side_lacks_are_counted(land: Land) -> None:
    batches = [
        land(b"id,s,new\n1,x,a\n2,y,\nbad,z,b\n"),
        land(b"id\n3\n4\n"),
    ]
    drift = Drift()
    rows_of(*batches, drift=drift)
    assert drift == Drift(unknown=Counter(new=1), missing=Counter(s=2))


def test_a_separator_at_the_end_of_each_line_is_a_column_without_a_name_or_a_value(land: Land) -> None:
    assert values_of(land(b"id,\n1,\n2,\n")) == [(1, None), (2, None)]
    rows = rows_of(land(b"s,id,\nx,1,\n"))
    assert [(row["id"], row["s"], row["_detail"]) for row in rows] == [(1, "x", None)]


def test_columns_that_the_schema_does_not_name_are_kept_or_held_where_that_is_asked_for(land: Land) -> None:
    batch = land(b'new,id,more,s\na,1,"""b""",x\n,2,,y\n')
    kept = rows_of(
        batch, schema=pa.schema([("id", pa.int32()), ("s", pa.string()), ("_unknown", pa.string())])
    )
    assert [(row["id"], row["s"], row["_unknown"]) for row in kept] == [
        (1, "x", '{"new":"a","more":"\\"b\\""}'), (2, "y", None)
    ]  # fmt: skip
    reader = CsvReader(
        schema=pa.schema([("id", pa.int32()), ("s", pa.string())]), dialect=Dialect(), holds_unknown=True
    )
    [rows] = CsvFiles(reader=reader, header=True, lines=Lines()).rows(iter([batch]))
    assert rows["_detail"].to_pylist() == ['new: not in the schema, and unknown is "hold"', None]
