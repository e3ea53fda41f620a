"""`sluice check` tells every mistake of all declarations and suites at once, and starts, makes and writes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from etl.cli.app import app
from etl.common.errors import SetupError
from etl.pipeline.ddl import TYPES, ddl_columns, unknown_types
from tests.support.data.orders import DECLARATION

NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "pipelines"))
    monkeypatch.setenv("SLUICE_SUITES", str(tmp_path / "suites"))
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "suites").mkdir()
    return tmp_path


def declare(folder: Path, name: str, *rules: Any, suite: str | None = None, **changes: str) -> None:
    text = DECLARATION.format(name=name, max_files=1, share=1.0)
    text = text.replace('suite="orders"', f'suite="{suite or name}"').replace(
        "with_city", f"{name}_with_city"
    )
    for old, new in changes.items():
        text = text.replace(old, new)
    (folder / "pipelines" / f"{name}.py").write_text(text)
    (folder / "suites" / f"{name}.json").write_text(json.dumps({"name": name, "expectations": rules}))


def checked(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", *words], catch_exceptions=False)
    return done.exit_code, done.stdout


def test_what_is_right_is_told_in_a_line_each_and_nothing_is_made(folder: Path) -> None:
    declare(folder, "orders", NOT_NULL)
    declare(folder, "returns")
    code, said = checked()
    assert code == 0
    assert said.splitlines() == [
        f"ok      orders: 1 rule in {folder}/suites/orders.json",
        f"ok      returns: 0 rules in {folder}/suites/returns.json",
        "no mistake in 2 pipelines",
    ]
    assert checked("orders")[1].splitlines()[1:] == ["no mistake in 1 pipeline"]
    assert {path.name for path in folder.iterdir()} == {"pipelines", "suites"}


def test_every_mistake_of_every_pipeline_is_told_with_its_file_and_remedy(folder: Path) -> None:
    declare(folder, "good", NOT_NULL)
    declare(folder, "two", {"type": "expect_table_row_count_to_equal", "kwargs": {"valu": 3}}, {"kwargs": {}})
    declare(folder, "fields", NOT_NULL, Append="Upsert", bigint="bigit")
    declare(folder, "gone", suite="goood")
    declare(folder, "again", **{'name="again"': 'name="good"'})
    (folder / "pipelines" / "torn.py").write_text("PIPELINE = (\n")
    (folder / "suites" / "gone.json").write_text("{}")
    code, said = checked()
    pipelines, suites = folder / "pipelines", folder / "suites"
    assert code == 2
    assert f"  {suites}/two.json: expectation 1 (expect_table_row_count_to_equal): " in said
    assert (
        f"  {suites}/two.json: expectation 2: it has no type\n    next: correct the suite, then `sluice check two`"
        in said
    )
    assert f"  {pipelines}/fields.py: " in said
    assert (
        f"  {pipelines}/gone.py: Suite goood.json of pipeline gone is in none of the folders {suites}; did you mean"
        in said
    )
    assert f"  {pipelines}/good.py: name: 'good' is declared in {pipelines}/again.py too\n" in said
    assert (
        f"  {pipelines}/torn.py: line 1: '(' was never closed\n    next: correct the file, then `sluice check torn`"
        in said
    )
    assert said.splitlines()[-1].endswith("7 mistakes in 6 of 6 pipelines")


def test_one_of_many_is_checked_alone(folder: Path) -> None:
    declare(folder, "good", NOT_NULL)
    (folder / "pipelines" / "torn.py").write_text("PIPELINE = (\n")
    assert checked("good")[0] == 0
    assert checked("torn")[0] == 2


def test_a_type_that_spark_does_not_have_is_told_at_any_depth(folder: Path) -> None:
    columns = "id bigit, n decimal(10, 2) NOT NULL COMMENT 'a, b', a array<struct<x: sting, y: map<string, dubble>>>"
    changes = {"id bigint": columns, "shop string, city string": "shop string, city"}
    declare(folder, "orders", NOT_NULL, **changes)
    _, said = checked("orders")
    told = [line.partition("orders.py: ")[2] for line in said.splitlines() if "orders.py: " in line]
    assert told == [
        "schema: id: Spark has no type 'bigit'; did you mean bigint?",
        "schema: a: Spark has no type 'sting'; did you mean string?",
        "schema: a: Spark has no type 'dubble'; did you mean double?",
        "lookups['shops'].schema: city: it has no type",
    ]


@pytest.mark.parametrize(
    "kind",
    [*sorted(TYPES - {"array", "map", "struct"}), "decimal(10,2)", "Array<Map<string,Struct<`a b`:INT>>>"],
)
def test_a_type_that_spark_has_is_right(kind: str) -> None:
    assert list(unknown_types(f"`a b` {kind}, c: {kind} NOT NULL")) == []


def test_a_clash_is_a_mistake_of_either_pipeline_as_for_a_run(folder: Path) -> None:
    declare(folder, "one", NOT_NULL)
    declare(folder, "two", NOT_NULL, **{"sink=Append()": 'sink=Append(table="warehouse.one")'})
    for name in ("one", "two"):
        code, said = checked(name)
        assert code == 2
        assert "sink: table warehouse.one belongs to pipeline 'one'" in said


def test_nothing_to_check_is_no_success(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SetupError, match=r"No pipeline is declared in .*/pipelines: no file there ends with \.py"
    ):
        checked()
    declare(folder, "orders", NOT_NULL)
    with pytest.raises(SetupError, match=r"No pipeline is called 'order'.*\n  next: did you mean orders"):
        checked("order")
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder / "none"))
    with pytest.raises(SetupError, match=r"The pipelines' folder .*/none is not there"):
        checked()


def test_the_same_as_json_and_neither_spark_nor_airflow_is_started(folder: Path) -> None:
    declare(folder, "two", {"type": "expect_table_row_count_to_equal", "kwargs": {"valu": 3}}, {"kwargs": {}})
    code = (
        "import __main__, sys; __main__.__file__ = ''\n"  # without one pyspark takes it for a doctest, and leaves
        "from etl.cli.app import app\n"
        "assert app(['check', '--json'], standalone_mode=False) == 2\n"
        "import pyspark\n"
        "assert pyspark.SparkContext._gateway is None and 'airflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    suite = f"{folder}/suites/two.json"
    assert json.loads(done.stdout) == [
        {
            "pipeline": "two",
            "file": f"{folder}/pipelines/two.py",
            "suite": suite,
            "rules": 0,
            "mistakes": [
                {"file": suite, "seen": seen, "remedy": "correct the suite, then `sluice check two`"}
                for seen in (
                    "expectation 1 (expect_table_row_count_to_equal): it has no argument 'valu'; did you mean value?",
                    "expectation 2: it has no type",
                )
            ],
        }
    ]


def test_comments_of_a_schema_are_no_columns_and_no_types() -> None:
    schema = """a string, -- the customer's name, as given
        b int, /* x, y */ c struct<d: int -- inner
        >, `e--f` date COMMENT '-- no'"""
    assert list(unknown_types(schema)) == []
    assert ddl_columns(schema) == ["a", "b", "c", "e--f"]
    assert list(unknown_types("a strng -- string")) == [("a", "strng")]
