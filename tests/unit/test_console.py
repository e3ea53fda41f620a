"""Nothing that a command prints can command the terminal: by the console's class, and no command has another way out."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator

import pytest
from rich.table import Table

from etl.cli.shared import HarmlessConsole
from tests.support.environment import REPOSITORY

HOSTILE = "x\x1b]0;pwned\x07\x1b[2J[red]y[/red] :boom: 5"
WRITTEN = "x\\x1b]0;pwned\\x07\\x1b[2J[red]y[/red] :boom: 5"
WAYS = (
    *("print", "Console", "Text.from_markup", "Text.from_ansi"),
    *("sys.stdout.write", "sys.stderr.write", "os.write"),
)
CLI = REPOSITORY / "etl" / "cli"
SHARED = "shared.py"  # the one module that has consoles


def printed(*objects: object) -> str:
    stream = io.StringIO()
    HarmlessConsole(file=stream, width=200).print(*objects)
    return stream.getvalue()


def test_a_text_is_printed_as_it_is_but_for_what_commands() -> None:
    assert printed(HOSTILE) == f"{WRITTEN}\n"
    assert printed("one", f"two\n{HOSTILE}") == f"one two\n{WRITTEN}\n"


def test_so_are_a_tables_cells_its_headings_and_its_title() -> None:
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    said = printed(table)
    assert said.count(WRITTEN) == 3
    assert "\x1b" not in said
    assert "\x07" not in said


def ways_out(source: str) -> Iterator[str]:
    """Yield each call of a module that writes past the console: `print`, `echo`, a stream, a console or Text of its own."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        last = called.rpartition(".")[2]
        constant = all(isinstance(one, ast.Constant) for one in node.args)
        if called in WAYS or last in ("echo", "secho") or (called == "Text" and not constant):
            yield called


def test_no_command_writes_past_the_console() -> None:
    found = {
        file.relative_to(CLI).as_posix(): list(ways_out(file.read_text()))
        for file in sorted(CLI.rglob("*.py"))
        if file.name != SHARED
    }
    assert len(found) > 10
    assert "project/new.py" in found
    assert {name: calls for name, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "call",
    [
        "print(x)",
        "typer.echo(x)",
        "secho(x)",
        "Console()",
        "Text(x)",
        "Text.from_markup('a')",
        "sys.stdout.write(x)",
    ],
)
def test_a_planted_way_out_is_found(call: str) -> None:
    assert list(ways_out(call)) == [call.partition("(")[0]]
    assert list(ways_out("out.print(x)\nText('a')\nerr.print(shown(x))")) == []
