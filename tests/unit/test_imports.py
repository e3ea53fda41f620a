"""Packages import downwards, no modules go round, and what must be light to import is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ETL = Path(__file__).resolve().parents[2] / "etl"
LAYERS = (  # the lowest first; packages of one line do not import each other
    {"common"},
    {"pipeline"},
    {"ledger", "services"},
    {"spark"},
    {"sinks", "quality", "sources", "alerts"},
    {"delivery"},
    {"runs"},
    {"operations", "airflow"},
    {"cli"},
)
FLOOR = {package: floor for floor, packages in enumerate(LAYERS) for package in packages}
NEVER = {  # beside the layers: no module below the first imports one below any of the others
    "sinks": {"spark"},
    "sinks.lake": {"sinks.warehouse"},
    "sinks.warehouse": {"sinks.lake"},
    "airflow.factory": {"runs", "spark", "sinks", "delivery"},
    "airflow.operator": {"runs", "spark", "sinks", "delivery"},
    "airflow.plugin": {"runs"},
    "airflow.pages": {"runs", "sinks", "spark"},
}
LIGHT = {"runs.summary"}  # a noun that Airflow's processes read, too; it imports nothing but for typing
COMMON = {
    *("database", "errors", "json_log", "migrations", "number_ranges", "outages", "outcome"),
    *("paths", "record_bounds", "record_columns", "settings", "shipped", "statements", "steps", "wording"),
}
# Executors and Airflow import below these: what stood in one of them, each task would import.
EMPTY = (
    "common",
    "ledger",
    "spark",
    "sinks",
    "sinks/lake",
    "sinks/warehouse",
    "sources",
    "quality",
    "delivery",
    "delivery/upserts",
)
HEAVY = ("pyspark", "pyiceberg", "great_expectations", "pandas")
# Where the functions are that tasks run: a worker of Spark imports each of them, at each of its starts.
IN_TASKS = (
    *("spark.tasks", "spark.watermark", "sources.json_records.files", "sources.csv_records.files"),
    *("sources.raw.tasks", "sources.side_inputs.scorers", "delivery.stage"),
    *("operations.suites.first_rows", "operations.suites.suite_difference"),
)

Imports = Mapping[str, set[str]]  # a module, by its dotted name below etl, and those that it imports


def read_imports(root: Path) -> Imports:
    """Read which modules each module below `root` imports: at its top, within functions and for typing alike."""
    modules = {_name(file, root): file for file in root.rglob("*.py")}
    return {name: set(_imported(file, modules)) - {name} for name, file in modules.items()}


def _name(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix("__init__").rstrip(".")


def _imported(file: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("etl."):
            package = (node.module or "").removeprefix("etl").lstrip(".")
            for alias in node.names:
                within = f"{package}.{alias.name}".lstrip(".")
                yield within if within in modules else package
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (name.removeprefix("etl.") for name in names if name.startswith("etl."))


def upwards(imports: Imports) -> list[str]:
    """Name each import that does not lead to a lower package."""
    return [
        f"{module} imports {other}"
        for module, others in imports.items()
        for other in sorted(others)
        if module and _package(module) != _package(other) and not _may(_package(module), _package(other))
    ]


def _package(module: str) -> str:
    return module.partition(".")[0]


def _may(package: str, other: str) -> bool:
    if package == "pipelines":
        return other == "pipeline"
    return other in FLOOR and FLOOR[other] < FLOOR[package]


def forbidden(imports: Imports) -> list[str]:
    """Name each import that `NEVER` forbids."""
    return [
        f"{module} imports {other}"
        for above, below in NEVER.items()
        for module, others in imports.items()
        for other in sorted(others)
        if _is_below(module, above) and any(_is_below(other, one) for one in below)
        if other not in LIGHT
    ]


def _is_below(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def circle(imports: Imports) -> list[str]:
    """Name modules that need each other, by any kind of import; none: there are no such."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def crowded(root: Path) -> list[str]:
    """Name the folders that can't be taken in at a glance."""
    folders = [root, *(folder for folder in root.rglob("*") if folder.is_dir() and any(folder.glob("*.py")))]
    counts = {folder: len(list(folder.glob("*.py"))) - 1 for folder in folders if folder.name != "pipelines"}
    return [
        f"{folder.relative_to(root)}: {modules} modules" for folder, modules in counts.items() if modules > 15
    ]


def test_packages_import_downwards() -> None:
    imports = read_imports(ETL)
    assert len(imports) > 200
    assert upwards(imports) == []
    assert forbidden(imports) == []


def test_no_modules_need_each_other_by_any_kind_of_import() -> None:
    assert circle(read_imports(ETL)) == []


def test_each_package_has_a_floor() -> None:
    packages = {path.name for path in ETL.iterdir() if (path / "__init__.py").exists()}
    assert packages == {*FLOOR, "pipelines"}
    entries = [path.name for path in ETL.iterdir() if path.name not in ("__pycache__", "pipelines")]
    assert len(entries) <= 15


def test_common_is_closed() -> None:
    assert {path.stem for path in (ETL / "common").glob("*.py")} == COMMON | {"__init__"}


def test_no_folder_has_more_than_fifteen_modules() -> None:
    assert crowded(ETL) == []


@pytest.mark.parametrize("folder", EMPTY)
def test_what_executors_import_on_their_way_is_empty(folder: str) -> None:
    [docstring] = ast.parse((ETL / folder / "__init__.py").read_text()).body
    assert isinstance(docstring, ast.Expr)


PLANTED = {
    "upwards": ("sources/a.py", "from etl.runs.run import run\n", upwards),
    "upwards, within a function": ("ledger/a.py", "def a():\n    from etl.spark import session\n", upwards),
    "upwards, for typing": (
        "pipeline/a.py",
        "if TYPE_CHECKING:\n    from etl.ledger.leases import L\n",
        upwards,
    ),
    "beside": ("quality/a.py", "import etl.sources.files\n", upwards),
    "a pipeline that knows more": ("pipelines/a.py", "from etl.common.errors import SluiceError\n", upwards),
    "a sink that knows the other": (
        "sinks/lake/a.py",
        "from etl.sinks.warehouse.table import T\n",
        forbidden,
    ),
    "a sink that knows Spark": ("sinks/a.py", "def a():\n    from etl.spark.session import s\n", forbidden),
    "a circle": ("common/a.py", "def a():\n    from etl.common.errors import a\n", circle),
}


@pytest.mark.parametrize(("file", "line", "rule"), PLANTED.values(), ids=PLANTED)
def test_each_rule_finds_a_planted_breach(tmp_path: Path, file: str, line: str, rule: object) -> None:
    there = ("runs/run", "spark/session", "ledger/leases", "sources/files", "sinks/warehouse/table")
    texts = {f"{name}.py": "" for name in there} | {"common/errors.py": "from etl.common.a import a\n"}
    for name, text in {**texts, file: line}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert callable(rule)
    assert rule(read_imports(tmp_path)) != []


def test_a_crowded_folder_is_found(tmp_path: Path) -> None:
    for number in range(17):
        (tmp_path / f"m{number}.py").touch()
    assert crowded(tmp_path) == [".: 16 modules"]


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import etl", ("pyspark", "pyiceberg", "great_expectations", "boto3", "psycopg2")),
        ("from etl.pipeline import load_pipelines", ("pyspark", "pyiceberg", "great_expectations", "pandas")),
        *((f"import etl.{name}", (*HEAVY, "pydantic")) for name in IN_TASKS),
        ("import etl.delivery.deliver", ("pyspark", "great_expectations")),
        (
            "import etl.airflow.pages.pages",
            ("airflow", "fastapi", "pyspark", "pyiceberg", "great_expectations", "pandas"),
        ),
        (
            "import etl.cli.app",
            ("pyspark", "pyiceberg", "great_expectations", "sklearn", "onnxruntime", "pyarrow", "numpy"),
        ),
        ("from etl.quality.gx import registered; registered()", ("scipy.stats._stats_py",)),
        ("import etl.runs.summary", ("pyspark", "pyiceberg", "pyarrow", "psycopg2")),
        (
            "import etl.runs.run",
            ("pyspark", "sklearn", "onnx", "onnxruntime", "openlineage", "opentelemetry"),
        ),
        (  # what a run that finds nothing new imports
            "import etl.runs.run, etl.cli.progress; from etl.runs.kinds.files import FileStream",
            (
                "pyarrow.compute",
                "pyarrow.parquet",
                "etl.sources.base",
                "etl.quality.rules",
                "rich.progress",
                "botocore",
                "croniter",
            ),
        ),
        (
            "from etl.sources.side_inputs import onnx_forest; onnx_forest.scores",
            ("pyspark", "pandas", "pyiceberg", "sklearn", "onnx"),
        ),
    ],
)
def test_a_light_module_stays_light(statement: str, absent: tuple[str, ...]) -> None:
    main = "import __main__; __main__.__file__ = ''"  # without one pyspark takes it for a doctest, and leaves
    code = f"{main}\n{statement}\nimport sys\nprint([name for name in {absent!r} if name in sys.modules])"
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
    """Return the strings that a module uses as names: what it looks up, not what it says."""
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
