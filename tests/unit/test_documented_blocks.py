"""Every code block of the documentation is what it says: declarations load, commands parse, settings exist."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

import etl
from etl.common.errors import SluiceError
from etl.common.settings import Settings
from etl.pipeline.loader import load_files
from etl.quality.suite import read_suite
from tests.support.commands import kept_stdout
from tests.support.documented import DECLARES, Block, blocks, pages, prose, whole_declaration
from tests.support.environment import REPOSITORY

LANGUAGES = {
    "json",
    "properties",
    "python",
    "sh",
    "sql",
    "text",
    "toml",
}  # sql: tests/service/test_documented_sql.py


def test_each_block_says_its_language() -> None:
    assert [str(one) for one in blocks() if one.language not in LANGUAGES] == []
    assert len(blocks("python")) > 30
    assert len(blocks("sh")) > 30


# --- Python ---


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_has_no_mistake(block: Block, tmp_path: Path) -> None:
    tree = ast.parse(block.text)
    assert list(unknown_names(tree)) == []
    if DECLARES in block.text:
        (tmp_path / "documented.py").write_text(whole_declaration(block.text))
        [loaded] = load_files([tmp_path])
        assert loaded.wrong == ()


def test_a_name_that_is_not_there_is_found() -> None:
    tree = ast.parse("from etl.pipeline import Filse, day\nx = etl.raed()\ny = F.collect_list(F.nope())\n")
    assert list(unknown_names(tree)) == ["etl.pipeline.Filse", "etl.raed", "F.nope"]


def unknown_names(tree: ast.Module) -> Iterator[str]:
    """Yield what the block takes from Sluice or of Spark's functions that is not there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("etl"):
            module = importlib.import_module(node.module or "")
            yield from (f"{node.module}.{one.name}" for one in node.names if not hasattr(module, one.name))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            holder = {"etl": etl, "F": importlib.import_module("pyspark.sql.functions")}.get(node.value.id)
            if holder is not None and not hasattr(holder, node.attr):
                yield f"{node.value.id}.{node.attr}"


# --- commands ---


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_are_as_they_are_written(block: Block) -> None:
    for command in commands(block.text):
        require_known(command)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_commands_in_sentences_have_the_options_that_they_name(page: Path) -> None:
    for span in re.findall(r"`((?:\S*/)?(?:sluice|make) [^`]+)`", prose(page)):
        for command in commands(span.replace("…", "")):
            try:
                require_known(command)
            except TyperException as wrong:  # a sentence may leave out an argument, or say N for a number
                if re.search("No such|unexpected", str(wrong)):
                    raise


def test_each_command_is_on_the_page_of_commands() -> None:
    shown = {
        command[1]
        for block in blocks("sh")
        if block.page == "commands.md"
        for command in commands(block.text)
    }
    assert shown >= {name for name, one in command_line().commands.items() if not one.hidden}


@pytest.mark.parametrize(
    "line",
    [
        "sluice repaly flights",
        "sluice run flights --folow",
        "cd x && .venv/bin/sluice recover",
        'eval "$(sluice enf)"',
        "A=b sluice replay flights --every soon",
        "make demos",
        "python -m etl.spark.launch.no_such",
    ],
)
def test_a_planted_mistake_is_found(line: str) -> None:
    *_, command = commands(line)
    with pytest.raises((TyperException, SluiceError, AssertionError, ModuleNotFoundError)):
        require_known(command)


def commands(script: str) -> Iterator[list[str]]:
    """Yield the commands of a script, each as its words."""
    script = re.sub(r"<<'(\w+)'.*?^\1$", "", script, flags=re.MULTILINE | re.DOTALL).replace("\\\n", " ")
    for line in [*script.splitlines(), *re.findall(r"\$\(([^()]*)\)", script)]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();&|")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if not word or word[0] not in "();&|":
                command.append(word)
                continue
            while command and re.match(r"\w+=", command[0]):
                command.pop(0)
            if command:
                yield command
            command = []


def require_known(command: list[str]) -> None:
    """Raise what click says where `sluice` has no such command, option or argument; the same of `make` and modules."""
    program, *words = command
    if program == "sluice" or program.endswith("/sluice"):
        parse_sluice(words)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words if "=" not in word} <= set(targets), command
    elif words[:1] == ["-m"] and words[1].startswith(("etl.", "tests.", "benchmarks")):
        assert find_spec(words[1]) is not None, command


@cache
def command_line() -> TyperGroup:
    """Return the command `sluice` with all that is below it."""
    from etl.cli.app import app

    command = get_command(app)
    assert isinstance(command, TyperGroup)
    return command


def parse_sluice(words: list[str]) -> None:
    """Parse a command's words without calling it, by the command line as it is."""
    with kept_stdout():
        _parse_sluice(words)


def _parse_sluice(words: list[str]) -> None:
    words = ["so" if word == "WHY" else word for word in words if word != "--verbose"]  # it takes no WHY
    command: Any = command_line()
    context = None
    while isinstance(command, TyperGroup) and words:
        context = command.make_context(command.name, list(words), parent=context)
        _, command, words = command.resolve_command(context, list(words))
    if not isinstance(command, TyperGroup):
        command.make_context(command.name, list(words), parent=context)


# --- settings and suites ---


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_settings_exist(block: Block) -> None:
    assert set(tomllib.loads(block.text)) <= set(Settings.model_fields)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_each_named_setting_exists(page: Path) -> None:
    known = {f"SLUICE_{name.upper()}" for name in Settings.model_fields} | {"SLUICE_CONFIG"}
    assert set(re.findall(r"SLUICE_[A-Z_0-9]*[A-Z0-9]", page.read_text())) - known == set()


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_a_suite_and_its_expectations_have_no_mistake(block: Block) -> None:
    document = json.loads(block.text)
    expectations = document.get("expectations") or [document] * ("type" in document)
    assert read_suite({"name": "documented", "expectations": expectations}).problems == ()
