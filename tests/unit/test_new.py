"""`sluice new` drafts a pipeline and a suite by what the reader takes a sample as, and writes over nothing."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import etl
from etl.cli.app import app
from etl.common.errors import SetupError
from etl.common.settings import load_settings
from etl.operations.suites.new_pipeline import draft
from etl.operations.suites.sample import read_sample
from etl.pipeline import load_pipeline


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    (tmp_path / "sluice.toml").write_text('pipelines = ["pipelines"]\nsuites = ["suites"]\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def types(file: Path) -> dict[str, str]:
    return {column.name: column.type for column in read_sample(file).columns}


def json_lines(*values: str) -> str:
    return "".join(f'{{"x": {value}}}\n' for value in values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-2", "null"], "bigint"),
        (["1", "2.5"], "double"),
        (["1e3"], "double"),
        (["1.0", "2.0"], "double"),
        (["1", str(1 << 64)], "decimal(38,0)"),
        (["true", "false"], "boolean"),
        (["true", '"true"'], "string"),
        (['"2026-01-31"', '"2026-02-28"'], "date"),
        (['"2026-01-31"', '"2026-01-31T10:00Z"'], "timestamp"),
        (['"2026-02-30"'], "string"),
        (['"2026"'], "string"),
        (['"12.50"'], "string"),
        (["null"], "string"),
        (
            ['{"a": 1, "b": [true]}', '{"a": 1.5, "c d": null}'],
            "struct<a: double, b: array<boolean>, `c d`: string>",
        ),
        (["{}"], "string"),
        (["[]", "[[1]]"], "array<array<bigint>>"),
        (["1", "[1]"], "string"),
        (["NaN", "1"], "double"),
        (['"\\ud83d"'], "string"),
    ],
)
def test_a_type_is_the_first_that_takes_all_values(tmp_path: Path, values: list[str], expected: str) -> None:
    (tmp_path / "s.jsonl").write_text(json_lines(*values))
    assert types(tmp_path / "s.jsonl") == {"x": expected}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-2", ""], "bigint"),
        (["007", "10"], "string"),
        (["1.50", "0.5"], "double"),
        (["0.5", "00.5"], "string"),
        (["true", "FALSE"], "boolean"),
        (["yes", "no"], "string"),
        (["2026-01-31"], "date"),
        (["2026-01-31 10:00"], "timestamp"),
        (['"a, b"'], "string"),
    ],
)
def test_a_text_of_csv_becomes_a_number_only_where_it_loses_nothing(
    tmp_path: Path, values: list[str], expected: str
) -> None:
    (tmp_path / "s.csv").write_text(
        "".join(f"{line}\n" for line in ("k,x", *(f"k,{value}" for value in values)))
    )
    assert types(tmp_path / "s.csv") == {"k": "string", "x": expected}


def test_parquet_is_declared_as_it_is(tmp_path: Path) -> None:
    columns = {
        "u": pa.array([1], pa.uint16()),
        "d": pa.array([1], pa.decimal128(10, 2)),
        "t": pa.array([1], pa.timestamp("ns")),
        "z": pa.array([1], pa.timestamp("us", "UTC")),
        "s": pa.array([{"a": 1, "b": ["x"]}]),
        "n": pa.nulls(1),
        "time": pa.array([1], pa.time64("us")),
    }
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    sample = read_sample(tmp_path / "s.parquet")
    assert {column.name: column.type for column in sample.columns} == {
        "u": "int",
        "d": "decimal(10,2)",
        "t": "timestamp_ntz",
        "z": "timestamp",
        "s": "struct<a: bigint, b: array<string>>",
        "n": "string",
    }
    assert sample.left_out == ["time: it is time64[us], which no declared type reads: it is left out"]


def test_a_pipeline_is_drafted_with_what_its_sample_proves(project: Path) -> None:
    records = [
        {"id": n, "kind": "ab"[n % 2], "price": n % 7 + 0.5, "note": None if n == 5 else "x"}
        for n in range(400)
    ]
    content = "".join(f"{json.dumps(one)}\n" for one in records) + "{torn\n"
    (project / "day.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    done = CliRunner().invoke(app, ["new", "orders", "--like", "day.jsonl.gz"], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout.startswith("orders: 400 records of day.jsonl.gz read as json\n")
    assert "look at: 1 record would be held as malformed: no JSON: " in done.stdout
    assert (
        "look at: price double: it is the nearest double: an amount of money is a decimal(p,s)\n"
        in done.stdout
    )
    assert done.stdout.endswith("next: `sluice try orders --input day.jsonl.gz`\n")
    pipeline = load_pipeline("orders", load_settings().pipelines)
    assert " ".join(pipeline.schema.split()) == "id bigint, kind string, price double, note string"
    assert (pipeline.sources[0].named, pipeline.suite) == ("orders/**/*.jsonl.gz", "orders")
    [checked] = etl.check()
    assert (checked.rules, checked.mistakes) == (6, ())
    suite = json.loads((project / "suites" / "orders.json").read_text())
    found = {one["meta"]["name"]: (one["severity"], one["kwargs"]) for one in suite["expectations"]}
    assert found == {
        "id is given": ("warning", {"column": "id"}),
        "kind is given": ("warning", {"column": "kind"}),
        "kind is one of the known": ("warning", {"column": "kind", "value_set": ["a", "b"]}),
        "price is given": ("warning", {"column": "price"}),
        "price is in its usual range": ("warning", {"column": "price", "min_value": 0.0, "max_value": 9.5}),
        "note is one of the known": ("warning", {"column": "note", "value_set": ["x"]}),
    }
    assert suite["expectations"][0]["notes"] == "0 nulls (0.00%) in 400 records of day.jsonl.gz."


def test_few_records_are_only_told_of(project: Path) -> None:
    (project / "few.csv").write_text("id;a b\n1;x\n2;\n")
    drafts = draft("few", Path("few.csv"), load_settings())
    suite = json.loads(drafts.suite.read_text())
    assert [(one["meta"]["name"], one["severity"]) for one in suite["expectations"]] == [
        ("id is given", "info")
    ]
    pipeline = load_pipeline("few", load_settings().pipelines)
    source: Any = pipeline.sources[0]
    assert (source.pattern, source.options) == ("few/**/*.csv", {"sep": ";"})
    assert pipeline.schema.split() == ["id", "bigint,", "`a", "b`", "string"]
    assert any(note.startswith("so few records prove little") for note in drafts.notes())


@pytest.mark.parametrize("there", ["pipelines/orders.py", "suites/orders.json"])
def test_nothing_that_is_there_is_written_over(project: Path, there: str) -> None:
    (project / "s.jsonl").write_text('{"x": 1}\n')
    (project / there).parent.mkdir()
    (project / there).write_text("mine")
    with pytest.raises(SetupError, match="there already, and not changed; nothing was written"):
        draft("orders", Path("s.jsonl"), load_settings())
    files = [str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()]
    assert sorted(files) == sorted(["s.jsonl", "sluice.toml", there])
    assert (project / there).read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "file", "content", "said"),
    [
        ("Orders", "s.jsonl", '{"x": 1}', r"name: 'Orders' must match"),
        ("../orders", "s.jsonl", '{"x": 1}', r"name: '\.\./orders' must match"),
        ("orders", "s.txt", "x", "its name does not say what it has"),
        ("orders", "s.jsonl", "\n", "has no record that can be read\n"),
        ("orders", "s.jsonl", "[1", r"can't be read: "),
        ("orders", "s.jsonl", "{", r"has no record that can be read: no JSON"),
        (
            "orders",
            "s.csv",
            "a,A\n1,2\n",
            "it has 'a' more than once",
        ),
        ("orders", "s.csv", "a,\n1,2\n", "it has a column without a name"),
        ("orders", "s.jsonl", '{"a": 1}\n{"A": 1}\n', "it has 'a' more than once"),
        ("orders", "s.csv", "a\n", "has no record that can be read\n"),
        ("orders", "s.parquet", "x", r"can't be read: "),
        ("orders", "gone.csv", None, r"gone\.csv can't be read: No such file"),
    ],
)
def test_what_can_not_be_drafted_writes_nothing(
    project: Path, name: str, file: str, content: str | None, said: str
) -> None:
    if content is not None:
        (project / file).write_text(content)
    with pytest.raises(SetupError, match=said) as refused:
        draft(name, Path(file), load_settings())
    assert refused.value.exit_code == 2
    assert not list(project.rglob("*.py"))


def test_the_shipped_folders_take_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(SetupError, match="There is no project here"):
        draft("orders", Path("s.jsonl"), load_settings())


def test_names_that_python_or_spark_would_read_otherwise_stay_as_they_are(project: Path) -> None:
    names = ['a"b', "a\\b", "a`b", "select", "ä", "a.b"]
    (project / 'my "s".jsonl').write_text(json.dumps(dict.fromkeys(names, 1)))
    drafts = draft("odd", Path('my "s".jsonl'), load_settings())
    assert [column.name for column in drafts.sample.columns] == names
    assert not etl.check()[0].mistakes


def test_a_draft_that_can_not_be_written_whole_is_not_written(project: Path) -> None:
    (project / "s.jsonl").write_text('{"x": 1}\n')
    (project / "suites").touch()
    with pytest.raises(SetupError, match=r"suites can't be written, and nothing was: "):
        draft("orders", Path("s.jsonl"), load_settings())
    assert not list(project.rglob("*.py"))


def test_a_header_that_one_separator_alone_reads_is_read_by_it(project: Path) -> None:
    (project / "s.csv").write_text('"price; EUR",id\n1.5,2\n')
    assert types(project / "s.csv") == {"price; EUR": "double", "id": "bigint"}


def test_a_name_of_a_file_that_is_no_utf_8_leaves_no_half_draft(project: Path) -> None:
    sample = Path(os.fsdecode(b"caf\xe9.jsonl"))
    (project / sample).write_text('{"x": 1}\n')
    drafts = draft("odd", sample, load_settings())
    assert drafts.pipeline.exists()
    assert "caf" in drafts.suite.read_text()
    assert not etl.check()[0].mistakes
