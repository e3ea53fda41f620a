"""Dependencies go one way, and what must be light to import is."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from itertools import combinations
from pathlib import Path

import pytest

ETL = Path(__file__).resolve().parents[2] / "etl"
# The way of a row: none of these asks for one that comes after it.
WAY = (
    "objects",
    "staging",
    "stage",
    "ledger",
    "lake",
    "warehouse",
    "commit",
    "deliver",
    "sparkbatch",
    "run",
)


def imported(module: Path) -> set[str]:
    return {name for node in ast.walk(ast.parse(module.read_text())) for name in _names(node)}


def _names(node: ast.AST) -> set[str]:
    """The modules of etl that an import names, such as `quality.gx`."""
    if not isinstance(node, ast.ImportFrom) or not f"{node.module}.".startswith("etl."):
        return set()
    room = (node.module or "").removeprefix("etl").lstrip(".")
    within = {f"{room}.{alias.name}".lstrip(".") for alias in node.names}
    return {name for name in {room, *within} if _file(name) is not None}


def _file(name: str) -> Path | None:
    place = ETL.joinpath(*name.split("."))
    return next(
        (one for one in (place.with_suffix(".py"), place / "__init__.py") if name and one.is_file()), None
    )


def test_the_two_sinks_do_not_import_each_other() -> None:
    assert "warehouse" not in imported(ETL / "lake.py")
    assert "lake" not in imported(ETL / "warehouse.py")


def test_the_rooms_of_the_way_of_a_row_import_downwards() -> None:
    upwards = [
        f"{room} imports {later}"
        for room, later in combinations(WAY, 2)
        if later in imported(ETL / f"{room}.py")
    ]
    assert upwards == []


def test_no_modules_need_each_other_to_be_imported() -> None:
    needs: dict[str, set[str]] = {}
    for file in ETL.rglob("*.py"):
        name = ".".join(file.relative_to(ETL).with_suffix("").parts).removesuffix(".__init__")
        at_once = {one for node in ast.parse(file.read_text()).body for one in _names(node)}
        needs[name] = at_once - {name, name.partition(".")[0]}
    assert len(needs) > 100
    TopologicalSorter(needs).prepare()  # CycleError names those that go round


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import etl", ("pyspark", "pyiceberg", "great_expectations", "boto3", "psycopg2")),
        ("from etl.pipeline import load_pipelines", ("pyspark", "pyiceberg", "great_expectations", "pandas")),
        ("import etl.stage", ("pyspark", "pyiceberg", "great_expectations", "pandas")),
        ("import etl.deliver", ("pyspark", "great_expectations")),
        (
            "import etl.ui.pages",
            ("airflow", "fastapi", "pyspark", "pyiceberg", "great_expectations", "pandas"),
        ),
        ("import etl.cli", ("pyspark", "pyiceberg", "great_expectations", "sklearn", "onnxruntime")),
        ("import etl.run", ("pyspark", "sklearn", "onnx", "onnxruntime")),
        ("import etl.forest; etl.forest.scores", ("pyspark", "pandas", "pyiceberg", "sklearn", "onnx")),
    ],
)
def test_a_light_room_stays_light(statement: str, absent: tuple[str, ...]) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {absent!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_pyspark_client_is_not_installed() -> None:
    """It owns hundreds of pyspark's own files; whichever is installed last wins."""
    from importlib.metadata import distributions

    assert "pyspark-client" not in {one.name for one in distributions()}


def test_only_settings_reads_the_environment_of_sluice() -> None:
    others = [
        path.name for path in ETL.rglob("*.py") if path.name != "settings.py" and "SLUICE_" in _code(path)
    ]
    assert others == []


def _code(path: Path) -> str:
    """The strings that a module uses as names: what it looks up, not what it says."""
    tree = ast.parse(path.read_text())
    looked_up = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "getenv")
        ):
            looked_up += [
                a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
            ]
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            looked_up += [node.slice.value] if isinstance(node.ctx, ast.Load) else []
    return " ".join(str(name) for name in looked_up)
