"""Every file that has landed is read once, and told where it can't be: none is lost, doubled or passed over."""

from __future__ import annotations

import datetime as dt
import gzip
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from etl.common.errors import InputsChanged, SetupError
from etl.common.paths import to_uri
from etl.operations.datasets.flights import land_flights, parse_days
from etl.pipeline import Files, Socket
from etl.pipeline.ddl import TYPES
from etl.pipelines.flights import PIPELINE as FLIGHTS
from etl.sources.evidence import look, path_column, path_of, paths_of, uri_at
from etl.sources.kinds.declared import kind_of, require_files
from etl.sources.landing import landed
from etl.sources.open import open_kind, open_source
from etl.spark.input_files import takes_input_file_name
from etl.spark.session import SHUFFLES
from tests.support.data.names import ODD
from tests.support.reading import pipeline, read, settings, write


def test_files_of_all_ages_and_depths_are_read_once(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(5):
        file = write(tmp_path / f"in/dt=2013-01-0{n}/{'x/' * n}a {n}%.jsonl", f'{{"id":{n}}}\n')
        os.utime(file, (n * 10**8, n * 10**8))
    write(tmp_path / "in/b.csv", "id,dt\n9,2013-01-01\n")
    write(tmp_path / "in/ignored.txt", "?")
    declared = pipeline(Files("in/**/*.jsonl", max_files=2), Files("in/**/*.csv"), schema="id int, dt date")
    found = read(spark, declared, tmp_path, tmp_path / "ck")
    assert sorted(row["id"] for row in found.rows) == [0, 1, 2, 3, 4, 9]
    assert [counted["rows"] for counted in found.counted] == [3, 2, 1]
    assert {row["dt"] is None for row in found.rows if row["id"] < 5} == {True}
    write(tmp_path / "in/c.csv", "id,dt\n10,\n")
    assert [row["id"] for row in read(spark, declared, tmp_path, tmp_path / "ck").rows] == [10]


def test_a_file_of_the_far_future_hides_no_later_one(spark: SparkSession, tmp_path: Path) -> None:
    declared = pipeline(Files("in/*.jsonl"), schema="id int")
    far = dt.datetime(2242, 3, 16, tzinfo=dt.UTC).timestamp()
    for n, at in enumerate((far, 0, -(10**9), far + 10**9, 10**9)):
        os.utime(write(tmp_path / f"in/{n}.jsonl", f'{{"id":{n}}}\n'), (at, at))
        assert [row["id"] for row in read(spark, declared, tmp_path, tmp_path / "ck").rows] == [n]


@pytest.mark.parametrize("pattern", ["in/*.csv", "in/d*.csv", "in/d.csv", "*/d.csv", "in/**/*.csv"])
def test_what_is_told_to_have_landed_is_what_spark_reads(
    spark: SparkSession, tmp_path: Path, pattern: str
) -> None:
    names = ["in/a.csv", "in/_b.csv", "in/d.csv/part-0", "in/d.csv/y/part-1.csv", "in/e/f.csv", "_z/d.csv"]
    names += ["in/d.csv/_SUCCESS", "in/d.csv/.part-0.crc", "in/d.csv/_temporary/0/part-2.csv"]
    names += [f"in/{name}.csv" for name in ODD]
    (tmp_path / "elsewhere/d").mkdir(parents=True)
    (tmp_path / "in").mkdir()
    for link, to in (("a link.csv", "a file"), ("links.csv", "d"), ("nowhere.csv", "gone")):
        (tmp_path / "in" / link).symlink_to(f"../elsewhere/{to}")
    names += ["in/a link.csv", "in/links.csv/part-0.csv"]
    for number, name in enumerate(names):
        write(tmp_path / name, f"id\n{number}\n")
    declared = pipeline(Files(pattern, format="csv"), schema="id int")
    there = landed(declared, str(tmp_path))
    found = read(spark, declared, tmp_path, tmp_path / "ck")
    there.discard("in/nowhere.csv")  # a link to nothing, which a run tells of
    assert sorted(names[row["id"]] for row in found.rows) == sorted(there) != []
    write(tmp_path / min(there), "id\nwrong\n")
    uris = [uri_at(path, str(tmp_path)) for path in sorted(there)]
    assert [row._raw for row in found.source.malformed(uris).collect()] == ["wrong"]


@pytest.mark.parametrize("pattern", ["in/*.csv", "in/**/*.csv", "in/a.csv"])
def test_what_is_no_file_is_named_wherever_it_is_looked_at(tmp_path: Path, pattern: str) -> None:
    """Whoever opens it may wait without end, so that nobody does."""
    place = write(tmp_path / "in/b.txt", "").with_name("a.csv")

    def make_socket(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))

    makers: dict[str, Callable[[Path], None]] = {
        "a named pipe": os.mkfifo,
        "a socket": make_socket,
        "a device": lambda path: path.symlink_to("/dev/zero"),
    }
    for kind, make in makers.items():
        make(place)
        with pytest.raises(SetupError, match=f"a.csv is {kind} and not a file"):
            landed(pipeline(Files(pattern)), str(tmp_path))
        with pytest.raises(SetupError, match=f"a.csv is {kind} and not a file"):
            look([place.as_uri()], landing=str(tmp_path))
        place.unlink()


@pytest.mark.parametrize("early", [True, False])
def test_a_colon_in_a_folder_that_a_glob_lists_is_told_of(
    spark: SparkSession, tmp_path: Path, early: bool
) -> None:
    write(tmp_path / "in/a.csv", "id\n1\n")
    declared = pipeline(Files("in/*.csv"), schema="id int")
    frame = None if early else open_source(spark, declared, settings(tmp_path)).streamed
    write(tmp_path / "in/T10:30.txt", "not even meant")
    if frame is None:
        with pytest.raises(SetupError, match=r"a name with a colon .*T10:30\.txt"):
            _ = open_source(spark, declared, settings(tmp_path)).streamed
        return
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "ck"))
    with pytest.raises(StreamingQueryException) as failed:
        writer.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(SetupError, match=r"a name with a colon .*T10:30\.txt"):
        kind_of(declared).raise_read_error([failed.value], "")


def test_a_batch_can_be_limited_by_bytes(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(4):
        write(tmp_path / f"in/{n}.jsonl", f'{{"id":{n}}}\n')
    declared = pipeline(Files("in/*.jsonl", max_bytes=20), schema="id int")
    assert [one["rows"] for one in read(spark, declared, tmp_path, tmp_path / "ck").counted] == [2, 2]


def test_files_that_cannot_be_read_are_named_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    lines = "".join(f'{{"id":{n}}}\n' for n in range(20_000)).encode()
    bad = [
        write(tmp_path / "in/cut.jsonl.gz", gzip.compress(lines)[:-500]),
        write(tmp_path / "in/renamed.csv", "id,number\n1,2\n"),
        write(tmp_path / "in/other.csv", "a,b\n1,2\n"),
        write(tmp_path / "in/broken.parquet", b"PAR1 and no more"),
    ]
    text_ids = spark.range(1).coalesce(1).selectExpr("cast(id as string) id", "id n")
    text_ids.write.parquet(str(tmp_path / "in/types"))
    bad += list((tmp_path / "in/types").glob("*.parquet"))
    good = [write(tmp_path / "in/a.jsonl", '{"id":1}\nbad\n'), write(tmp_path / "in/a.csv", "id,n\n1,x\n")]
    sources = (Files("in/*.jsonl*", format="json"), Files("in/*.csv"), Files("in/**/*.parquet"))
    declared = require_files(pipeline(*sources, schema="id int, n bigint"), "a test")
    source = open_kind(spark, declared, settings(tmp_path))
    found = source.unreadable([path.as_uri() for path in bad + good])
    assert set(found) == {path.as_uri() for path in bad}
    lacks = "its CSV header is id, number; the schema is id, n: it lacks n, has number instead"
    assert (found[bad[1].as_uri()], "it lacks id; n" in found[bad[2].as_uri()]) == (lacks, True)
    assert source.reread([path.as_uri() for path in (bad[1], good[0])], broken=[bad[1].as_uri()]).count() == 1
    unnameable = write(tmp_path / "in/t10:00:00.parquet", b"PAR1")
    [why] = source.unreadable([unnameable.as_uri()]).values()
    assert "t10:00:00" in why
    assert source.reread([unnameable.as_uri()], broken=[unnameable.as_uri()]).count() == 0
    nameable = write(tmp_path / "in/t10:00:00.jsonl", '{"id":1}\n').as_uri()
    assert source.unreadable([nameable]) == {} and source.reread([nameable], broken=()).count() == 1
    with pytest.raises(InputsChanged, match="is gone"):
        source.unreadable([(tmp_path / "in/gone.csv").as_uri()])


def test_the_few_that_cannot_be_read_among_many_are_found_in_few_jobs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Name the files that reading each alone names; also those with names that Spark escapes or refuses."""
    rows, odd = gzip.compress(b'{"id":1}\n' * 2000), "in/a b+%20é#.jsonl.gz"
    for n in range(20):
        write(tmp_path / f"in/{n}.jsonl.gz", rows)
        pq.write_table(pa.table({"id": pa.array([n], pa.int32())}), write(tmp_path / f"in/{n}.parquet", b""))
    write(tmp_path / odd, rows[:-20])
    write(tmp_path / "in/7.jsonl.gz", b"no gzip")
    write(tmp_path / "in/12.parquet", b"PAR1 and no more")
    sources = Files("in/*.jsonl.gz"), Files("in/*.parquet")
    source = open_kind(
        spark, require_files(pipeline(*sources, schema="id int"), "a test"), settings(tmp_path)
    )

    def uris() -> list[str]:
        return [file.as_uri() for file in sorted((tmp_path / "in").iterdir())]

    def looked_for(some: list[str]) -> tuple[dict[str, str], int]:
        spark.sparkContext.setJobGroup(f"{tmp_path} {len(some)}", "")
        found = source.unreadable(some)
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        return found, len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"{tmp_path} {len(some)}"))

    bad = [(tmp_path / name).as_uri() for name in (odd, "in/7.jsonl.gz", "in/12.parquet")]
    found, jobs = looked_for(uris())
    assert found == {uri: source.unreadable([uri])[uri] for uri in bad}
    assert jobs == 2 + 3, (
        "those of JSON at once, where a shuffle is a job; of Parquet one names it, and two halves"
    )
    good = [uri for uri in uris() if uri not in bad]
    assert looked_for(good) == ({}, 3)
    assert set(looked_for([*good[:5], bad[0]])[0]) == {bad[0]}
    write(tmp_path / "in/t10:00.parquet", b"PAR1")
    assert set(source.unreadable(uris())) == {*bad, (tmp_path / "in/t10:00.parquet").as_uri()}
    (tmp_path / "in/3.parquet").unlink()
    with pytest.raises(InputsChanged, match=r"in/3.parquet is gone"):
        source.unreadable([*good, *bad])


def test_an_lz4_frame_of_text_is_told_and_not_read_as_nothing(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "in/a.txt.lz4"
    file.parent.mkdir()
    with pa.CompressedOutputStream(str(file), "lz4") as out:
        out.write(b'id\n{"id": "1"}\n')
    declared = require_files(pipeline(Files("in/*.lz4", format="text"), schema="id string"), "a test")
    source = open_kind(spark, declared, settings(tmp_path))
    assert "it is an LZ4 frame" in source.misfits([file.as_uri()])[file.as_uri()]


def test_each_record_has_the_path_of_its_file_as_the_ledger_names_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    written = pa.BufferOutputStream()
    pq.write_table(pa.table({"line": ["by parquet"]}), written)
    landed = {
        "by csv": write(tmp_path / "in/a b+c%20é#1.csv", "line\nby csv\n"),
        "by parquet": write(tmp_path / "in/x=1&y=?/{b}.parquet", written.getvalue().to_pybytes()),
        "by json": write(tmp_path / "in/'c'\u3000[1].jsonl", '{"line":"by json"}\nbad\n'),
        "by text": write(tmp_path / "in/100% d$1\\.log", "by text\n"),
    }
    sources = (
        Files(f"in/{pattern}", path="file") for pattern in ("*.csv", "**/*.parquet", "*.jsonl", "*.log")
    )
    declared = pipeline(*sources, schema="line string")
    found = read(spark, declared, tmp_path, tmp_path / "ck")
    wanted = {line: str(file.relative_to(tmp_path)) for line, file in landed.items()}
    assert {row["line"]: row["file"] for row in found.rows} == wanted

    landed["elsewhere"] = write(tmp_path.with_name(f"{tmp_path.name} +") / "e f+g.log", "elsewhere\n")
    wanted["elsewhere"] = str(landed["elsewhere"])
    uris = [to_uri(str(file)) for file in landed.values()]
    assert {path_of(uri, str(tmp_path)) for uri in uris} == {*wanted.values()}
    anywhere = replace(found.source, anywhere=True).reread(uris, broken=uris[:1])
    assert {row.line: row.file for row in anywhere.collect()} == wanted
    assert found.source.reread([], broken=()).columns == ["line", "file", "_file_number"]


def test_a_column_that_only_a_folder_names_is_told_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tell it of a Parquet file only where it has no such column; of CSV never, where each file has all columns."""
    lacking, whole = pa.table({"id": [1]}), pa.table({"id": [1], "country": ["NL"], "Day": ["x"]})
    for name, table in (
        ("country=NL/Day=1/lacking", lacking),
        ("country=DE/Day=2/whole", whole),
        ("id=7/x", whole),
    ):
        pq.write_table(table, write(tmp_path / f"in/{name}.parquet", b""))
    write(tmp_path / "in/country=NL/city=A/a.jsonl", "{}\n")
    write(tmp_path / "in/day=1/a.csv", "id,country,day,city\n1,NL,x,A\n")
    schema = "id bigint, country string, day string, city string"
    parquet, json, csv = Files("in/**/*.parquet"), Files("in/**/*.jsonl"), Files("in/**/*.csv")

    def told(*sources: Files) -> list[tuple[str, ...]]:
        caplog.clear()
        kind = require_files(pipeline(*sources, schema=schema), "a test")
        source = open_kind(spark, kind, settings(tmp_path))
        uris = [uri_at(path, str(tmp_path)) for path in sorted(landed(kind.pipeline, str(tmp_path)))]
        assert source.misfits(uris) == source.misfits(uris) == {}
        return [tuple(map(str, one.args or ()))[1:4] for one in caplog.records]

    lacks = "in/country=NL/Day=1/lacking.parquet"
    of_parquet = [(lacks, "country=NL", "country"), (lacks, "Day=1", "day")]
    of_json = [
        ("in/country=NL/city=A/a.jsonl", f"{name}={value}", name)
        for name, value in (("country", "NL"), ("city", "A"))
    ]
    assert told(parquet, csv) == of_parquet
    assert told(json, csv) == of_json
    assert 'Files("in/**/*.jsonl", path="file")' in caplog.messages[-1]
    assert told(replace(parquet, path="file")) == told(csv) == []


def test_a_path_within_spark_is_the_one_of_the_ledger_below_any_landing(spark: SparkSession) -> None:
    places = ["/in/a b+c%20é#1.csv", "/in/%2B/x.csv", "/in\u3000$1/\\x.csv", "/inside/a.csv"]
    landings = ("/in", "/in/", "/", "s3a://b/in", "s3a://b/")
    uris = [to_uri(root + place) for root in ("", "s3a://b") for place in places]
    paths = [path_column(F.col("uri"), landing) for landing in landings]
    rows = spark.createDataFrame([(uri,) for uri in uris], "uri string").select("uri", *paths).collect()
    assert [tuple(row) for row in rows] == [
        (uri, *(path_of(uri, landing) for landing in landings)) for uri in uris
    ]
    for landing in landings:
        together = paths_of(pa.chunked_array([uris]), landing).to_pylist()
        assert together == [path_of(uri, landing) for uri in uris]


@pytest.mark.parametrize(
    ("transform", "told"),
    [
        (lambda df: df.select("_metadata.file_path"), "`_metadata`"),
        (lambda df: df._metadata, "`_metadata`"),
        (lambda df: df.select(F.upper(F.input_file_name()).alias("file")), r"input_file_name\(\)"),
        (lambda df: df.where(F.input_file_name() != "").distinct(), r"input_file_name\(\)"),
    ],
)
def test_a_transform_that_asks_spark_for_its_file_is_shown_the_declared_way(
    spark: SparkSession, tmp_path: Path, transform: Callable[[DataFrame], DataFrame], told: str
) -> None:
    declared = pipeline(Files("in/*.csv"), Files("in/*.jsonl"), schema="id int")
    kind = require_files(replace(declared, transform=transform), "a test")
    with pytest.raises(SetupError, match=told) as refused:
        open_kind(spark, kind, settings(tmp_path), stream=False).shape()
    assert refused.value.remedy == 'declare Files(…, path="file"), and use the column file'
    assert not takes_input_file_name(spark.range(1).select(F.rand(), F.uuid()))


def test_what_is_missing_or_wrong_is_told_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="sluice land flights"):
        open_source(spark, FLIGHTS, settings(tmp_path))
    write(tmp_path / "in/a.jsonl", "{}")
    with pytest.raises(SetupError, match="elsewhere"):
        open_source(spark, pipeline(Files("elsewhere/*.jsonl")), settings(tmp_path))
    file = write(tmp_path / "declared.py", 'FIRST = 1\nSCHEMA = "id whole"\n')
    for schema, told in (
        (
            "id whole",
            rf"^{file}, line 2: .*schema is no Spark DDL: .*\"WHOLE\", behind 'id' \(character 4\)",
        ),
        ("id decimal(50,2)", rf"^{file}: .*is no Spark DDL: .*exceeds max precision 38"),
        ("bigint", "schema is 'bigint', a type without a column"),
    ):
        declared = replace(pipeline(Files("in/*.jsonl"), schema=schema), file=file)
        with pytest.raises(SetupError, match=told):
            open_source(spark, declared, settings(tmp_path))
    for kind in ("varchar(5)", "array<char(4)>", "interval year to month"):
        with pytest.raises(SetupError, match=r"column a has the type .*, which can't be read"):
            open_source(spark, pipeline(Files("in/*.jsonl"), schema=f"id int, a {kind}"), settings(tmp_path))
    write(tmp_path / "in/a.csv", "id,a\n")
    with pytest.raises(SetupError, match=r"a can't be read from CSV \(in/\*.csv\)"):
        open_source(spark, pipeline(Files("in/*.csv"), schema="id int, a array<int>"), settings(tmp_path))
    lines = Socket(host="127.0.0.1", port=9)
    for source, name in ((Files("in/*.jsonl"), r"in/\*.jsonl"), (lines, "socket://127.0.0.1:9")):
        for kind in ("interval day to second", "array<variant>", "map<int, string>", "time(6)"):
            declared = pipeline(source, schema=f"id int, a {kind}")
            with pytest.raises(SetupError, match=rf"a can't be read from JSON \({name}\)"):
                open_source(spark, declared, settings(tmp_path))


def test_every_flight_is_one_row_with_its_departure(spark: SparkSession, tmp_path: Path) -> None:
    landed = land_flights(settings(tmp_path), parse_days("2013-03-09..2013-03-12"))
    found = read(spark, FLIGHTS, tmp_path, tmp_path / "ck")
    assert len(found.rows) == landed.flights and found.raw == []
    assert sum(one["rows"] for one in found.counted) == landed.flights
    for row in found.rows:
        assert row["scheduled_departure"].replace(minute=0) == row["time_hour"]
    known = next(row for row in found.rows if row["tailnum"] == "N14228" or row["manufacturer"])
    assert known["airline"] and known["model"] and known["seats"]
    assert {row["airline"] is None for row in found.rows} == {False}


def test_many_folders_are_listed_in_as_many_tasks_as_there_are_cores(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in range(40):  # beyond 32 Spark lists them in a job
        folder = tmp_path / f"dt={number}"
        folder.mkdir()
        (folder / "one.txt").write_text("a line\n")
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    spark.readStream.text(f"{tmp_path}/*")
    [job] = set(tracker.getJobIdsForGroup()) - before
    stages = [tracker.getStageInfo(stage) for stage in tracker.getJobInfo(job).stageIds]
    assert [stage.numTasks for stage in stages] == [int(spark.conf.get(SHUFFLES))]


def test_spark_s_parser_takes_each_type_that_a_check_knows(spark: SparkSession) -> None:
    def parses(written: str) -> bool:
        with suppress(PySparkException):
            return bool(StructType.fromDDL(f"a {written}"))
        return False

    forms = ("{}", "{}(3)", "{}(4326)", "{}<int>", "{}<string, int>", "{}<b int>", "{} year")
    assert [name for name in sorted(TYPES) if not any(parses(form.format(name)) for form in forms)] == []
