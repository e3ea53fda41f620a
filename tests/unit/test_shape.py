"""Test folders hold tests, helpers are a closed list in tests/support, and nothing is imported out of a test file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import support
from tests.support.environment import REPOSITORY

TESTS = REPOSITORY / "tests"
SUPPORT = "support"


def imported(source: str) -> set[str]:
    """Return every module that the source imports, a name that it takes out of one counted as a module too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def out_of_tests(source: str) -> list[str]:
    """Return what the source imports of `tests` that is no helper."""
    ours = (name for name in imported(source) if name.startswith("tests."))
    return sorted(name for name in ours if not f"{name}.".startswith(f"tests.{SUPPORT}."))


def misplaced(folder: Path) -> list[str]:
    """Return the modules outside tests/support that are neither tests nor fixtures."""
    modules = [file.relative_to(folder) for file in folder.rglob("*.py")]
    mine = [module for module in modules if module.parts[0] != SUPPORT]
    allowed = ("conftest.py", "__init__.py")
    return sorted(
        str(module) for module in mine if not (module.name in allowed or module.name.startswith("test_"))
    )


def test_nothing_is_imported_out_of_a_test_file() -> None:
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 100
    assert {file.name: found for file in files if (found := out_of_tests(file.read_text()))} == {}


@pytest.mark.parametrize(
    "breach",
    [
        "from tests.service.test_sinks import rows",
        "import tests.service.test_sinks",
        "from tests.conftest import settings",
        "from tests.spark import test_run",
        "def f():\n    from tests.dags.conftest import home",
    ],
)
def test_a_planted_import_is_found(breach: str) -> None:
    assert out_of_tests(f"from tests.support import oracle\nfrom tests import support\n{breach}\n")
    assert out_of_tests("from tests.support import oracle\nfrom tests.support.home import Home\n") == []


def test_test_folders_hold_tests_alone(tmp_path: Path) -> None:
    assert misplaced(TESTS) == []
    for name in ("support/oracle.py", "spark/test_run.py", "spark/conftest.py", "spark/taps.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert misplaced(tmp_path) == ["spark/taps.py"]


def test_the_list_of_helpers_is_closed() -> None:
    listed = [line.split()[0] for line in (support.__doc__ or "").splitlines()[2:] if line]
    there = {file.stem for file in (TESTS / SUPPORT).iterdir() if not file.name.startswith("__")}
    assert listed == sorted(there)
