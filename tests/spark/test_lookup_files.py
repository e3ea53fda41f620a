"""A lookup is read as it is declared, whole and with one row a key, or refused with its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from etl.common.errors import NeedsPerson, SetupError
from etl.pipeline import Files, Lookup
from etl.sources.open import open_source
from tests.support.reading import pipeline, settings, write


def test_a_doubled_key_in_a_lookup_stops_the_run(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in/a.jsonl", '{"id":1}\n')
    lookup = Lookup("reference/p.csv", schema="id int, name string", key=("id",))
    declared = pipeline(Files("in/*.jsonl"), schema="id int", p=lookup)
    write(tmp_path / "reference/p.csv", "id,name\n1,a\n2,b\n1,c\n,d\n,e\n")
    with pytest.raises(NeedsPerson, match=r"1 key .id. more than once: 1"):
        open_source(spark, declared, settings(tmp_path))
    write(tmp_path / "reference/p.csv", "id,name\n1,a\nx,b\n")
    with pytest.raises(SetupError, match="malformed record, such as 'x,b'"):
        open_source(spark, declared, settings(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "schema", "why"),
    [
        ("p.csv", b"title,k\nAnn,a\n", "k string, name string", "it lacks name, has title instead"),
        ("p.parquet", b"PAR1 and no more", "k string", "is not a Parquet file"),
        ("p.parquet", {"k": pa.array([40000], pa.uint16())}, "k smallint", "k is uint16, declared smallint"),
        ("p.parquet", {"k": pa.array([18262], pa.date32())}, "k int", "k is date32[day], declared int"),
        ("p.json", b'{"k": "12,50"}\n', "k decimal(10,2)", "has 1 malformed record"),
        ("p.csv", b'k\n"12,50"\n', "k decimal(10,2)", "has 1 malformed record"),
    ],
)
def test_a_lookup_is_read_as_it_is_declared_or_refused_with_its_file(
    spark: SparkSession, tmp_path: Path, name: str, content: Any, schema: str, why: str
) -> None:
    write(tmp_path / "in/a.jsonl", '{"id":1}\n')
    file = write(tmp_path / "ref" / name, content if isinstance(content, bytes) else b"")
    if not isinstance(content, bytes):
        pq.write_table(pa.table(content), file)
    lookup = Lookup(f"ref/{name}", schema=schema, key=("k",))
    with pytest.raises(SetupError, match="The lookup 'p' of pipeline events") as refused:
        open_source(spark, pipeline(Files("in/*.jsonl"), schema="id int", p=lookup), settings(tmp_path))
    assert why in refused.value.seen
    assert "malformed" in why or file.as_uri() in refused.value.seen


def test_a_lookup_of_parquet_as_pandas_writes_it_is_read(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in/a.jsonl", '{"id":1}\n')
    file = write(tmp_path / "ref/p.parquet", b"")
    since = pa.array([-1], pa.int64()).cast(pa.timestamp("ns"))
    pq.write_table(pa.table({"k": ["a"], "since": since, "until": pa.nulls(1)}), file)
    lookup = Lookup("ref/p.parquet", schema="k string, since timestamp, until timestamp", key=("k",))
    source = open_source(spark, pipeline(Files("in/*.jsonl"), schema="id int", p=lookup), settings(tmp_path))
    rows = source.lookups["p"].selectExpr("k", "unix_micros(since) since", "until").collect()
    assert [tuple(row) for row in rows] == [("a", -1, None)]


def test_a_lookup_stays_as_it_was_when_the_source_was_opened(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in/a.jsonl", '{"id":1}\n')
    file = write(tmp_path / "reference/p.csv", "id,name\n1,first\n")
    lookup = Lookup("reference/p.csv", schema="id int, name string", key=("id",))
    source = open_source(spark, pipeline(Files("in/*.jsonl"), schema="id int", p=lookup), settings(tmp_path))
    write(file, "id,name\n1,second\n")
    assert [row.name for row in source.lookups["p"].collect()] == ["first"]
    (version,) = source.lookup_versions["p"]
    assert version.path == "reference/p.csv" and version.size == len("id,name\n1,first\n")
