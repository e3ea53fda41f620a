"""Every record of every format is a typed row or malformed: none is lost or blurred into nulls."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from etl.common.errors import SetupError
from etl.common.paths import to_path
from etl.common.record_bounds import Bounds
from etl.common.record_columns import RAW, REPORT
from etl.pipeline import Files
from etl.sources.kinds.declared import require_files
from etl.sources.open import open_kind, open_source
from etl.sources.parsing import Reading, csv_rows, ddl_fields
from tests.support.reading import pipeline, read, settings, write

GOOD_JSON = [
    ('{"id":1,"n":2,"d":1.5,"s":"x","b":true,"t":"2013-01-01T10:00:00Z","dt":"2013-01-01","dec":1.25,"st":{"a":1},'
    '"ar":[1,2],"sm":3}'),
    '{"id":2,"s":"}{ \\" }","st":{"a":null}}',
    '{"id":3,"s":5}',
    '\t{"id":4,"d":"NaN"} \r',
    "{}",
]  # fmt: skip
BAD_JSON = [
    '{"id":"1"}', '{"id":1.5}', '{"id":3000000000}', '{"n":99999999999999999999}', '{"d":"abc"}', '{"b":1}',
    '{"t":"nope"}', '{"t":"2013-13-01T00:00:00Z"}', '{"dt":"2013-02-30"}', '{"dt":""}', '{"dec":12345.6}',
    '{"st":{"a":"x"}}', '{"st":5}', '{"ar":["x"]}', '{"ar":5}', '{"sm":40000}', "[]", '[{"id":1},{"id":2}]',
    "5", '"x"', '""', "null", "not json", '{"id":1', '{"id":1}{"id":2}', '{"id":1},{"id":2}',
    '{"id":1} trailing',
    '{"id":1}}', '{"id":01}', '{"s":"a\x00b"}', "}", "{",
]  # fmt: skip


def test_each_json_line_is_one_row_or_malformed(spark: SparkSession, tmp_path: Path) -> None:
    lines = [text for pair in zip(BAD_JSON, GOOD_JSON * 7, strict=False) for text in pair]
    write(tmp_path / "in/a.jsonl", "\n".join([*lines, "", "   "]))
    found = read(spark, pipeline(Files("in/*.jsonl")), tmp_path, tmp_path / "ck")
    assert sorted(text.strip() for text in found.raw) == sorted(BAD_JSON)
    assert len(found.rows) == len(lines) - len(BAD_JSON)
    assert found.counted == [{"rows": len(lines), "malformed": len(BAD_JSON)}]
    first = found.rows[0]
    assert (first["id"], first["n"], first["d"], first["s"], first["b"]) == (1, 2, 1.5, "x", True)
    assert (
        first["st"] == '{"a":1}'
        and first["ar"] == "[1,2]"
        and first["sm"] == 3
        and str(first["dec"]) == "1.25"
    )
    assert found.rows[1]["s"] == '}{ " }'


CSV_SCHEMA = "id int, d double, b boolean, t timestamp, dt date, dec decimal(5,2), s string"
GOOD_CSV = [
    "1,1.5,true,2013-01-01T10:00:00Z,2013-01-01,1.25,x", '2,,,,,,"a ""b"", c"', ",,,,,,", "3,NaN,,,,,a b"
]  # fmt: skip
BAD_CSV = [
    "x,,,,,,", "3000000000,,,,,,", "1.5,,,,,,", ",abc,,,,,", ",,yes,,,,", ",,,nope,,,", ",,,,2013-02-30,,",
    ",,,,,99999,", "1", "1,2", "1,,,,,,x,more", " 1 ,,,,,,", f"1{',' * 25_000}",
]  # fmt: skip


def test_each_csv_line_is_one_row_or_malformed(spark: SparkSession, tmp_path: Path) -> None:
    text = "\n".join(["id,d,b,t,dt,dec,s", *GOOD_CSV, *BAD_CSV, "", ""])
    write(tmp_path / "in/a.csv", text)
    write(tmp_path / "in/b.csv.gz", gzip.compress(text.encode()))
    declared = pipeline(Files("in/*.csv*", format="csv"), schema=CSV_SCHEMA)
    found = read(spark, declared, tmp_path, tmp_path / "ck")
    assert sorted(found.raw) == sorted(BAD_CSV * 2)
    assert sorted(str(row["s"]) for row in found.rows) == sorted(["x", 'a "b", c', "None", "a b"] * 2)
    assert found.counted == [{"rows": 2 * len(GOOD_CSV + BAD_CSV), "malformed": 2 * len(BAD_CSV)}]
    files = {str(tmp_path / "in" / name) for name in ("a.csv", "b.csv.gz")}
    assert {to_path(path) for _, path in found.malformed} == files


def test_json_that_is_not_utf_8_is_malformed(spark: SparkSession, tmp_path: Path) -> None:
    good = ['{"s":"ä"}', ' {"s":"\\u00e4😀"} ', '{"s":"�"}']
    bad = [b'{"s":"\xe4"}', b' {"s":"\xff\xfe"} ', b'\xff{"id":1}', b'{"s":"\xed\xa0\x80"}', b"\x80"]
    write(tmp_path / "in/a.jsonl", b"\n".join([*bad, *(one.encode() for one in good)]))
    found = read(spark, pipeline(Files("in/*.jsonl")), tmp_path, tmp_path / "ck")
    assert sorted(row["s"] for row in found.rows) == sorted(["ä", "ä😀", "�"])
    assert found.counted == [{"rows": len(good + bad), "malformed": len(bad)}]
    assert sorted(found.raw) == sorted(one.decode(errors="backslashreplace") for one in bad)


def test_what_is_beyond_the_bounds_of_the_settings_is_malformed_whatever_the_format(
    spark: SparkSession, tmp_path: Path
) -> None:
    within, beyond = '{"s":"€"}'.ljust(1998), '{"s":"€"}'.ljust(1999)
    assert (len(within.encode()), len(beyond.encode())) == (2000, 2001)
    deep = '{"s":' * 250 + "1" + "}" * 250
    write(tmp_path / "in/a.jsonl", f"{within}\n{beyond}\n{deep}\n")
    write(tmp_path / "in/b.json", f"[{deep}]")
    write(tmp_path / "in/c.csv", f"s\n{'x' * 2000}\n{'x' * 2001}\n")
    for pattern, rows, raw in (
        ("in/*.jsonl", 2, [beyond.encode()[:2000].decode()]),
        ("in/*.json", 1, []),
        ("in/*.csv", 1, ["x" * 2000]),
    ):
        declared = pipeline(
            Files(pattern, format="json-array" if pattern.endswith("json") else None), schema="s string"
        )
        bounds = Bounds(record_bytes=2000, record_depth=250)
        found = read(spark, declared, tmp_path, tmp_path / "ck" / pattern[-4:], bounds)
        assert len(found.rows) == rows and found.raw == raw, pattern


def test_json_of_every_type_comes_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    good = """{"by": {"b": [1.50, null]}, "dotted.name": 1, "raw": "aGk=", "wide": "0.10", "f": 1.00000005960464477540,
        "local": "2026-01-02T03:04:05.5", "many": [{"at": "2026-01-02T03:04:05+01:00"}, null], "_id": "ä\\u0000"}"""
    write(tmp_path / "in/a.jsonl", good.replace("\n", " ") + "\n" + '{"many": [{"at": "10:30"}]}\n')
    schema = (
        "by map<string, array<decimal(4,2)>>, `dotted.name` tinyint, raw binary, wide decimal(38,18), f float,"
        " local timestamp_ntz, many array<struct<at: timestamp>>, _id string, missing struct<x: int>"
    )
    source = open_source(spark, pipeline(Files("in/*.jsonl"), schema=schema), settings(tmp_path))
    uris = [(tmp_path / "in/a.jsonl").as_uri()]
    [frame] = source._static(uris, ()).values()
    [row] = (one.asDict(recursive=True) for one in frame.where(f"{REPORT} IS NULL").collect())
    [held] = (one.asDict() for one in source.malformed(uris).collect())
    assert row["by"] == {"b": [Decimal("1.50"), None]} and row["dotted.name"] == 1 and row["raw"] == b"hi"
    assert row["wide"] == Decimal("0.1") and row["f"] == 1.0000001192092896 and row["_id"] == "ä\x00"
    assert row["local"] == dt.datetime(2026, 1, 2, 3, 4, 5, 500000)  # noqa: DTZ001
    assert [one and one["at"].timestamp() for one in row["many"]] == [1767319445, None]
    assert row["missing"] is None
    assert held["_raw"] == '{"many": [{"at": "10:30"}]}' and held["_source_path"] == uris[0]
    assert held["_detail"].startswith('many[0].at: found "10:30", wanted a timestamp')


def test_csv_is_read_by_the_header_of_each_file_whatever_part_of_it_a_task_has(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = "".join(f"text {n},{n}\n" for n in range(400_000))  # of several parts
    write(tmp_path / "in/large.csv", f"s,id\n{lines}")
    write(tmp_path / "in/older.csv.gz", gzip.compress(b"id\n400000\n"))
    write(tmp_path / "in/newer.csv", "id,more,s\n400001,x,text 400001\n")
    declared = pipeline(Files("in/*.csv*", format="csv"), schema="id int, s string")
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1m")
    try:
        found = read(spark, declared, tmp_path, tmp_path / "ck")
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    assert sorted(row["id"] for row in found.rows) == list(range(400_002))
    assert {row["id"] for row in found.rows if row["s"] != f"text {row['id']}"} == {400_000}
    assert found.raw == []


def test_csv_of_other_encodings_and_of_values_with_line_breaks(spark: SparkSession, tmp_path: Path) -> None:
    text = 'id,s\r\n1,"gr\u00f6\u00dfer\r\nas two"\r\n2,\u00e4\r\n'
    for encoding in ("utf-16", "windows-1252", "utf-8"):
        file = write(tmp_path / encoding / "a.csv.gz", gzip.compress(text.encode(encoding)))
        options = {"encoding": encoding, "multiLine": "true"}
        declared = pipeline(Files(f"{encoding}/*", format="csv", options=options), schema="id int, s string")
        found = read(spark, declared, tmp_path, tmp_path / "ck" / encoding)
        rows = {row["id"]: row["s"] for row in found.rows}
        assert rows == {1: "gr\u00f6\u00dfer\r\nas two", 2: "\u00e4"}, file


def test_json_arrays_are_read_as_whole_files(spark: SparkSession, tmp_path: Path) -> None:
    records = [{"id": n, "s": f"text\n{n}"} for n in range(30_000)]
    write(tmp_path / "in/a.json", json.dumps(records, indent=2))
    write(tmp_path / "in/b.json.gz", gzip.compress(b'[{"id": 30000}, {"id": "x"}]'))
    write(tmp_path / "in/empty.json", "")
    declared = pipeline(Files("in/*.json*", format="json-array"), schema="id int, s string")
    found = read(spark, declared, tmp_path, tmp_path / "ck")
    assert sorted(row["id"] for row in found.rows) == list(range(30_001))
    assert found.raw == ['{"id": "x"}'] and found.counted == [{"rows": 30_002, "malformed": 1}]
    torn = write(tmp_path / "in/torn.json", '[{"id": 1}, {"id": 2}, {"i').as_uri()
    source = open_kind(spark, require_files(declared, "a test"), settings(tmp_path))
    why = "its JSON array is broken at character 24, after 2 elements"
    assert source.unreadable([torn]) == {torn: why}
    assert source.reread([torn], broken=[torn]).count() == 2


def test_lines_of_csv_that_no_file_has_are_read_alike(spark: SparkSession) -> None:
    values = spark.createDataFrame([("1;12,50",), ("2;12.50",), ("3",)], "value string")
    rows = csv_rows(
        values, ddl_fields("id int, dec decimal(5,2)", ""), {"sep": ";", "decimal": ","}, Reading()
    ).collect()
    assert [row["dec"] for row in rows] == [Decimal("12.50"), None, None]
    assert [row["_detail"] for row in rows] == [
        None, 'dec: found "12.50", wanted decimal(5,2)', "found 1 of 2 fields"
    ]  # fmt: skip


def test_a_transform_that_uses_no_column_loses_no_count(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in/a.csv", "id\n1\nx\n")
    declared = pipeline(Files("in/*.csv"), schema="id int")
    none = replace(declared, transform=lambda df: df.selectExpr("'a' as letter"))
    found = read(spark, none, tmp_path, tmp_path / "ck")
    assert found.rows == [{"letter": "a"}] and found.raw == ["x"]
    assert found.counted == [{"rows": 2, "malformed": 1}]


def test_fields_that_the_transform_does_not_use_are_checked_too(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in/a.jsonl", '{"id":1,"n":"wrong"}\n{"id":2}\n')
    write(tmp_path / "in/a.csv", "id,n\n3,wrong\n4,\n")
    declared = pipeline(Files("in/*.jsonl"), Files("in/*.csv"), schema="id int, n int")
    some = replace(declared, transform=lambda df: df.where("id > 1").select("id"))
    found = read(spark, some, tmp_path, tmp_path / "ck")
    assert sorted(row["id"] for row in found.rows) == [2, 4]
    assert found.counted == [{"rows": 4, "malformed": 2}]
    assert sorted(found.raw) == ["3,wrong", '{"id":1,"n":"wrong"}']


def test_parquet_rows_are_typed(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).selectExpr("cast(id as int) id", "id n").write.parquet(str(tmp_path / "in"))
    found = read(spark, pipeline(Files("in/*.parquet"), schema="id int, n bigint"), tmp_path, tmp_path / "ck")
    assert sorted((row["id"], row["n"]) for row in found.rows) == [(0, 0), (1, 1), (2, 2)]
    assert sum(one["rows"] for one in found.counted) == 3


def test_every_line_of_a_text_file_is_a_row(spark: SparkSession, tmp_path: Path) -> None:
    lines = ["GET /a 200", "", '{"not": "parsed"}', " ä, spaced "]
    write(tmp_path / "in/a.log", "\n".join(lines) + "\n")
    write(tmp_path / "in/b.txt", gzip.compress(b"last, without an end"))
    (tmp_path / "in/b.txt").rename(tmp_path / "in/b.txt.gz")
    sources = (Files("in/*.log"), Files("in/*.gz", format="text"))
    found = read(spark, pipeline(*sources, schema="line string"), tmp_path, tmp_path / "ck")
    assert sorted(row["line"] for row in found.rows) == sorted([*lines, "last, without an end"])
    assert (sum(one["rows"] for one in found.counted), found.malformed) == (5, [])
    with pytest.raises(SetupError, match=r"are one string column; the schema is struct<id:int>"):
        _ = open_source(spark, pipeline(Files("in/*.log"), schema="id int"), settings(tmp_path)).streamed


def test_a_number_beyond_a_tinyint_is_malformed(spark: SparkSession, tmp_path: Path) -> None:
    lines = [f'{{"id": {number}}}' for number in (-129, -128, 127, 128)]
    write(tmp_path / "in/a.jsonl", "\n".join([*lines, '{"id": null}', ""]))
    source = open_source(spark, pipeline(Files("in/*.jsonl"), schema="id tinyint"), settings(tmp_path))
    uris = [(tmp_path / "in/a.jsonl").as_uri()]
    assert sorted(str(row.id) for row in source.reread(uris, broken=()).collect()) == ["-128", "127", "None"]
    assert {row[RAW] for row in source.malformed(uris).collect()} == {lines[0], lines[3]}
