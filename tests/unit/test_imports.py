"""Dependencies go one way, and what must be light to import is."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ETL = Path(__file__).resolve().parents[2] / "etl"
# Downwards: a room may import those before it.
LEVELS = [
    {"errors", "steps", "verdict", "statements", "airflow_try", "standing"},
    {"declaration", "patterns", "columns", "checksum", "places"},
    {"pipeline", "declaration_checks", "source_checks", "inputs", "limits", "bounds", "database", "settings"},
    {"objects", "staging", "services", "checkpoint", "landing", "landed"},
    {"stage", "ledger", "tries", "lake", "warehouse", "quality", "reader"},
    {"models"},
    {"batch", "source", "commit"},
    {"deliver", "sparkbatch", "sparksession", "preflight"},
    {"run", "forward", "read", "status"},
    {"recover", "audit", "sweep", "train", "doctor", "progress", "environment", "trigger"},
    {"cli"},
]


def imported(module: Path) -> set[str]:
    tree = ast.parse(module.read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("etl."):
            names.add(node.module.split(".")[1])
        if isinstance(node, ast.ImportFrom) and node.module == "etl":
            names |= {alias.name for alias in node.names}
    return names


def test_the_two_sinks_do_not_import_each_other() -> None:
    assert "warehouse" not in imported(ETL / "lake.py")
    assert "lake" not in imported(ETL / "warehouse.py")


def test_the_rooms_of_the_path_of_a_row_import_downwards() -> None:
    level = {name: height for height, names in enumerate(LEVELS) for name in names}
    upwards = [
        f"{room} imports {other}"
        for room in ("stage", "staging", "objects", "ledger", "lake", "warehouse", "commit", "deliver", "run")
        for other in imported(ETL / f"{room}.py")
        if other in level and level[other] > level[room]
    ]
    assert upwards == []


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
