"""What the commands print is what it claims to be."""

from __future__ import annotations

import getpass
import io
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from etl.cli import suites
from etl.cli.app import _report_failure, app
from etl.cli.shared import HarmlessConsole, called, duration, print_json, shown, telling_of_new_home, who
from etl.common.errors import SetupError, SluiceError
from etl.common.settings import load_settings


def test_a_json_document_has_no_value_that_json_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"rows": [(1.5, math.nan), (math.inf, None)], "at": {1: -math.inf}})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found == {"rows": [[1.5, "NaN"], ["Infinity", None]], "at": {"1": "-Infinity"}}


def test_a_value_can_not_command_the_terminal() -> None:
    assert shown("a\x1b]0;owned\x07[bold]ä\n").plain == r"a\x1b]0;owned\x07[bold]ä\n"


def test_a_duration_is_a_number_and_a_unit_within_a_day() -> None:
    found = [duration("--every", text).total_seconds() for text in ("1s", "1.5s", "90s", "5m", "24h")]
    assert found == [1, 1.5, 90, 300, 86_400]
    for text in ("", "10", "s", "0s", "0.5s", "25h", "-1s", "1e3s", "10 s", "1d"):
        with pytest.raises(SetupError, match=f"--every {text}: no time"):
            duration("--every", text)


@pytest.mark.parametrize("trouble", [KeyError, OSError])
def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch, trouble: type[Exception]) -> None:
    def nameless() -> str:
        raise trouble("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert who() == f"uid {os.getuid()}"


def test_the_command_to_copy_is_one_word_to_a_shell_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "Ann's own $HOME" / "bin" / "sluice"), "run"])
    assert shlex.split(called()) == ["Ann's own $HOME/bin/sluice"]
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv" / "bin" / "sluice"), "run"])
    assert called() == ".venv/bin/sluice"
    monkeypatch.setenv("PATH", str(tmp_path / ".venv" / "bin"))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "sluice").touch(mode=0o755)
    assert called() == "sluice", "as the shell finds it"


def test_messages_have_their_commands_as_the_process_was_called_and_values_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "sluice"), "status"])
    _report_failure(SetupError("`sluice stop a` was asked", remedy="`sluice run a`; then `sluice audit a`"))
    said = capsys.readouterr().err
    assert said == (
        "sluice: `bin/sluice stop a` was asked\n  next: `bin/sluice run a`; then `bin/sluice audit a`\n"
    )
    console = HarmlessConsole(width=200)
    with console.capture() as printed:
        console.print("a: idle; next: sluice run a")
        console.print(shown("`sluice run a`"))
    assert printed.get() == "a: idle; next: bin/sluice run a\n`sluice run a`\n"


def test_a_folder_without_a_home_is_no_empty_place_to_ask_and_a_new_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sluice.toml").touch()
    home = tmp_path / ".sluice"
    for words in ("status", "quarantine list flights", "audit flights", "replay flights --deliveries 1"):
        with pytest.raises(SetupError, match=f"There is no home here.*: {home} is no folder") as refused:
            CliRunner().invoke(app, words.split(), catch_exceptions=False)
        assert (refused.value.exit_code, home.exists()) == (2, False)
    assert CliRunner().invoke(app, ["down"]).stdout == f"nothing was running: there is no home, {home}\n"
    for _ in range(2):
        with telling_of_new_home(load_settings()):
            home.mkdir(exist_ok=True)
    assert capsys.readouterr().err == f"a new home was made, {home}; SLUICE_HOME names another\n"


def test_a_mistake_in_a_declaration_is_told_before_a_home_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(home := tmp_path / "home"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    (tmp_path / "wrong.py").write_text(
        "from etl.pipeline import Pipeline\nPIPELINE = Pipeline(name='wrong')\n"
    )
    with pytest.raises(SetupError, match="declaration has mistakes"):
        CliRunner().invoke(app, ["run", "wrong"], catch_exceptions=False)
    assert not home.exists()


def test_a_value_in_an_error_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    seen = "the file \x1b]0;pwned\x07\x1b[2J of [red]Köln[/red]\n  evidence: none"
    for error in (SluiceError(seen, remedy="look at it"), ValueError(seen)):
        assert _report_failure(error) == 70
    said = capsys.readouterr().err
    assert "\x1b" not in said and "\x07" not in said
    assert (
        "sluice: the file \\x1b]0;pwned\\x07\\x1b[2J of [red]Köln[/red]\n  evidence: none\n  next: look at it\n"
        in said
    )


def test_no_hidden_option_is_suggested_for_a_misspelled_one() -> None:
    commands = cast("Any", get_command(app)).commands
    hidden = [
        (name, option)
        for name, command in commands.items()
        for one in command.params
        if getattr(one, "hidden", False)
        for option in one.opts
    ]
    assert ("run", "--airflow") in hidden
    for name, option in hidden:
        said = CliRunner().invoke(app, [name, "x", option[:-1]])
        assert said.exit_code == 2
        assert option[:-1] in said.output
        assert option not in said.output
    assert "--follow" in CliRunner().invoke(app, ["run", "x", "--folow"]).output


def test_every_number_that_a_command_takes_has_a_bound() -> None:
    commands = cast("Any", get_command(app)).commands
    there = [*commands.items(), *commands["quarantine"].commands.items()]
    numbers = [
        (name, one)
        for name, command in there
        for one in command.params
        if one.type_descriptor.annotation is int
    ]
    assert {name for name, _ in numbers} >= {"list", "try", "state", "whatif", "suggest", "docs", "decide"}
    assert [(name, one.name) for name, one in numbers if one.max is None] == []


@pytest.mark.parametrize("word", ["WHY", "…", " WHY "])
def test_no_command_takes_the_word_that_stands_for_a_reason(word: str) -> None:
    commands = cast("Any", get_command(app)).commands
    there = {(name,): one for name, one in commands.items()}
    there |= {("quarantine", name): one for name, one in commands["quarantine"].commands.items()}
    taking = [words for words, one in there.items() if any("--why" in option.opts for option in one.params)]
    assert {words[-1] for words in taking} == {"decide", "discard", "recover", "release", "replay", "retire"}
    for words in taking:
        refused = CliRunner().invoke(app, [*words, "--why", word]).exception
        assert isinstance(refused, SetupError)
        assert refused.seen == f"--why {word.strip()} is no reason"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--plan", "--plan needs --before"),
        ("--before 3 --accept-gone --why x", "--accept-gone does not go with --before"),
        ("--accept-gone", "--accept-gone needs --why"),
        ("--why x", "--why needs --accept-gone or --before"),
        ("--before 3", "--before needs --why, or --plan"),
    ],
)
def test_options_of_recover_that_do_not_go_together_are_refused_each_with_its_own_words(
    options: str, said: str
) -> None:
    with pytest.raises(SetupError) as refused:
        CliRunner().invoke(app, ["recover", "x", *options.split()], catch_exceptions=False)
    assert refused.value.seen == said


def test_the_installed_command_is_the_module() -> None:
    installed, module = (
        subprocess.run([*words, "--help"], capture_output=True, text=True, check=True).stdout
        for words in ([Path(sys.executable).with_name("sluice")], [sys.executable, "-m", "etl.cli"])
    )
    assert "whatif" in installed
    assert installed.split() == module.replace("python -m etl.cli", "sluice").split()


@pytest.mark.parametrize("mode", ["0", "1", ""])
def test_names_of_files_are_utf_8_whatever_the_locale(mode: str) -> None:
    script = (
        "import sys; from etl.cli import use_utf8; use_utf8(); print(sys.argv, sys.getfilesystemencoding())"
    )
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": mode}
    words = [sys.executable, "-c", script, "caf\u00e9", "a b"]
    done = subprocess.run(words, env=environment, capture_output=True, check=True)
    assert done.stdout.decode() == "['-c', 'caf\u00e9', 'a b'] utf-8\n"


def test_rows_that_do_not_fit_beside_each_other_follow_below(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(suites, "out", Console(file=said, width=80))
    rows = [(number, f"American Airlines {number}") for number in range(8)]
    suites._upright("delivered", [("number", "bigint"), ("carrier", "string")], rows)
    text = said.getvalue()
    assert "delivered, rows 1 to 3 of 8" in text
    assert "delivered, rows 7 to 8 of 8" in text
    assert "carrier" in text and text.count("American") == len(rows)
    said.truncate(0)
    suites._upright("held", [("number", "bigint")], rows[:3])
    assert "held, rows" not in said.getvalue()
