"""Sinks are told apart in one place, which makes their modes; everybody else asks a mode."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from etl.pipeline import Sink

ETL = Path(__file__).resolve().parents[2] / "etl"
SINKS = {sink.__name__ for sink in get_args(Sink)}
MAKES_MODES = "sinks/modes.py"
DECLARES = ("pipeline/declaration.py", "pipeline/__init__.py", "pipeline/checks.py")
PIPELINES = ("pipelines/", "operations/projects/template/pipelines/")


def told_apart(root: Path) -> list[str]:
    """Name each place below `root` where code tells sinks apart, or could, knowing their classes by name."""
    found = []
    for file in sorted(root.rglob("*.py")):
        where = file.relative_to(root).as_posix()
        tree = ast.parse(file.read_text())
        found += [f"{where}:{line}: tells sinks apart" for line in _asked(tree) if where != MAKES_MODES]
        if where not in (*DECLARES, MAKES_MODES) and not where.startswith(PIPELINES):
            found += [f"{where}:{line}: names a sink's class" for line in _named(tree)]
    return found


def _asked(tree: ast.AST) -> Iterator[int]:
    """Yield the lines with an isinstance, issubclass, match or comparison of types on a sink's class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("isinstance", "issubclass") and _names_sink(node.args[1]):
                yield node.lineno
        elif (isinstance(node, ast.Compare) and any(map(_names_sink, node.comparators))) or (
            isinstance(node, ast.MatchClass) and _names_sink(node.cls)
        ):
            yield node.lineno if isinstance(node, ast.Compare) else node.cls.lineno


def _names_sink(node: ast.AST) -> bool:
    return any(_name(one) in {*SINKS, "Sink"} for one in ast.walk(node))


def _name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _named(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that import a sink's class from the declarations, or name it through their module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("etl.pipeline."):
            if SINKS & {alias.name for alias in node.names}:
                yield node.lineno
        elif (
            isinstance(node, ast.Attribute)
            and node.attr in SINKS
            and _name(node.value) in ("pipeline", "declaration")
        ):
            yield node.lineno


def test_sinks_are_told_apart_where_their_modes_are_made() -> None:
    assert told_apart(ETL) == []


@pytest.mark.parametrize("file", [*DECLARES, MAKES_MODES])
def test_a_new_mode_is_told_to_these_files_each_of_which_names_every_sink(file: str) -> None:
    """And to sql/sinks/modes.sql, where its rows are merged in a new way."""
    nodes = list(ast.walk(ast.parse((ETL / file).read_text())))
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    declared = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    assert imported | declared >= SINKS


PLANTED = {
    "an isinstance": ("runs/a.py", "def f(sink):\n    return isinstance(sink, etl.pipeline.Upsert)\n"),
    "one on several": ("runs/a.py", "def f(sink):\n    return isinstance(sink, Append | Replace)\n"),
    "one in a tuple": ("delivery/a.py", "ok = isinstance(one.sink, (int, Replace))\n"),
    "one where sinks are checked": ("pipeline/checks.py", "ok = isinstance(sink, Upsert)\n"),
    "one on all sinks": ("pipeline/checks.py", "ok = isinstance(sink, Sink)\n"),
    "a match": ("runs/a.py", "match sink:\n    case Upsert(keys=k):\n        pass\n"),
    "types compared": ("runs/a.py", "ok = type(sink) is Replace\n"),
    "a table of types": ("runs/a.py", "from etl.pipeline import Append\nMODES = {Append: 1}\n"),
    "an import from where it is declared": ("runs/a.py", "from etl.pipeline.declaration import Replace\n"),
    "a type through its module": ("runs/a.py", "from etl import pipeline\nMODES = {pipeline.Append: 1}\n"),
}


@pytest.mark.parametrize(("file", "text"), PLANTED.values(), ids=PLANTED)
def test_a_planted_breach_is_found(tmp_path: Path, file: str, text: str) -> None:
    for name in (file, MAKES_MODES, "pipelines/one.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("from etl.pipeline import Append\n")
    assert told_apart(tmp_path) == (
        [] if file.startswith("pipeline/") else [f"{file}:1: names a sink's class"]
    )
    (tmp_path / file).write_text(text)
    (tmp_path / MAKES_MODES).write_text("from etl.pipeline import Append\nok = isinstance(sink, Append)\n")
    [found, *_] = told_apart(tmp_path)
    assert found.startswith(f"{file}:")
