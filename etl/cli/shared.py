"""What the commands of `sluice` share: their workspace, and the options that they take and print."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, JustifyMethod, OverflowMethod
from rich.style import Style
from rich.text import Text
from typer.core import TyperCommand

from etl.common.errors import SetupError
from etl.common.json_log import JsonStream
from etl.common.settings import Settings, load_settings
from etl.common.wording import HALF_SURROGATE, WHY, of_json, visible

if TYPE_CHECKING:
    from etl.pipeline import Pipeline
    from etl.runs.workspace import Workspace


class Command(TyperCommand):
    """A command that suggests none of its hidden options where a name is misspelled."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if near := getattr(error, "possibilities", None):
                params = self.get_params(ctx)
                hidden = {name for one in params if getattr(one, "hidden", False) for name in one.opts}
                error.possibilities = [name for name in near if name not in hidden]  # type: ignore[attr-defined]
            raise


PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", help="The declared name.")]
_result: IO[str] | None = None  # where the result goes, once all else goes to standard error


def result_to_stdout(wanted: bool) -> bool:
    """Send all but the result to standard error from here on: what a pipeline's file, a library or a child prints, too."""
    global _result
    if wanted and _result is None:
        sys.stdout.flush()
        _result = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
        os.dup2(2, 1)
        if isinstance(sys.stderr, JsonStream):
            sys.stdout = sys.stderr
    return wanted


def print_result(text: str) -> None:
    """Print the command's result to standard output, which has nothing else where it goes apart."""
    stream = _result or sys.stdout
    stream.write(text)
    stream.flush()


AsJson = Annotated[
    bool, typer.Option("--json", callback=result_to_stdout, help="Print one JSON document instead.")
]


def open_workspace(settings: Settings | None = None, *, begins: bool = False) -> Workspace:
    """Open the place that the settings (None: those in force) lead to, with its services running.

    A command that `begins` something makes the home of embedded services where it is missing, and says so; of any other
    command it raises SetupError.
    """
    from etl.runs.workspace import Workspace

    settings = settings or load_settings()
    if not begins:
        _require_home(settings)
    with telling_of_new_home(settings):
        return Workspace.open(settings)


def open_declared(
    name: str, settings: Settings | None = None, *, begins: bool = False
) -> tuple[Workspace, Pipeline]:
    """Open the place as `open_workspace` does, and a pipeline's declaration; return both.

    The declaration is read first: one with a mistake starts no service and makes no home.
    """
    settings = settings or load_settings()
    if not begins:
        _require_home(settings)
    pipeline = load(name, settings)
    return open_workspace(settings, begins=begins), pipeline


def _require_home(settings: Settings) -> None:
    if settings.lacks_home:
        raise SetupError(
            f"There is no home here, with what was delivered: {settings.home} is no folder",
            remedy="`cd` to the folder that has it, or name it in SLUICE_HOME; `sluice up` begins a new one here",
        )


@contextmanager
def telling_of_new_home(settings: Settings) -> Iterator[None]:
    """Say where a home is that is made within; nothing where it was there."""
    was_there = settings.home.is_dir()
    yield
    if not was_there and settings.home.is_dir():
        err.print(f"a new home was made, {settings.home}; SLUICE_HOME names another")


# What a signal leaves of a command that changes something: in one transaction, or piece by piece.
DONE_OR_NOT = "it was done whole or not at all; the same command may be given again"
DONE_SO_FAR = "what it had done stays; the same command does the rest"


def load(name: str, settings: Settings) -> Pipeline:
    from etl.pipeline import load_pipeline

    return load_pipeline(name, settings.pipelines)


def load_if_right(name: str, workspace: Workspace) -> Pipeline | None:
    """Return a pipeline's declaration; None where it is on record and its declaration is gone, or has a mistake.

    Raises SetupError where it is neither declared nor on record.
    """
    try:
        return load(name, workspace.settings)
    except SetupError:
        if not is_on_record(name, workspace):
            raise
        return None


def is_on_record(name: str, workspace: Workspace) -> bool:
    """Tell whether the ledger knows a pipeline, declared or not."""
    from etl.common.database import transaction
    from etl.common.migrations import migrate
    from etl.ledger.pipelines import pipeline_row

    migrate(workspace.services.postgres)
    with transaction(workspace.services.postgres) as cursor:
        return pipeline_row(cursor, name) is not None


_SECONDS = {"s": 1, "m": 60, "h": 3600}


def duration(option: str, text: str) -> dt.timedelta:
    """Read a duration such as 10s, 5m or 1h, from one second to a day.

    Raises SetupError, which names the option.
    """
    match = re.fullmatch(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)([smh])", text)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0
    if not 1 <= seconds <= 86_400:
        raise SetupError(f"{option} {text}: no time from 1s to 24h", remedy=f"such as {option} 10s, 5m or 1h")
    return dt.timedelta(seconds=seconds)


_NO_REASONS = (WHY.split()[1], "…", "...")  # as messages and documents have it


def no_utf_8(word: str) -> SetupError:
    """Make the error of a word of the command line that is no text, such as an é from a terminal of Latin-1."""
    return SetupError(
        f"{word!r} on the command line is not in UTF-8",
        remedy="write it in UTF-8; `locale` tells what the shell writes",
    )


def given_reason(why: str | None) -> str | None:
    """Return the reason of a command as it was given. Raises SetupError for the word that stands for one, and for bytes."""
    if why is not None and HALF_SURROGATE.search(why):
        raise no_utf_8(why)
    if why is not None and why.strip() in _NO_REASONS:
        raise SetupError(f"--why {why.strip()} is no reason", remedy="write in its place why, in quotes")
    return why


def print_json(content: Any) -> None:
    """Print one JSON document; NaN and the infinities, which JSON does not have, are text in it."""
    print_result(json.dumps(of_json(content), indent=2, default=str, allow_nan=False) + "\n")


def shown(text: object) -> Text:
    """Return a value as a terminal may show it: without markup and control characters.

    A control character could command the terminal.
    """
    return Text(visible(str(text)))


def shown_lines(text: object) -> Text:
    """Return text of several lines, each as a terminal may show it: without markup or control characters."""
    return Text("\n").join(map(shown, str(text).split("\n")))


def standard_input() -> str:
    """Read what a command is given on its standard input, by Sluice's operator in Airflow."""
    with open(0, encoding="utf-8", closefd=False) as given:
        return given.read()


def who() -> str:
    """Return the user's name, or the number of a user who has none, as in a container."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # KeyError: Python before 3.13, of a uid that has no name
        return f"uid {os.getuid()}"


def called() -> str:
    """Return the command as this process was started, quoted for people to copy into a shell."""
    command = Path(sys.argv[0])
    if command.name != "sluice" or shutil.which("sluice") == str(command):
        return "sluice"
    return shlex.quote(os.path.relpath(command))


def as_given() -> str:
    """Return the command line of this process with its bare name, quoted, as it is to be given again."""
    return shlex.join(["sluice", *sys.argv[1:]])


# Where messages print a command of ours; what is stored of them, and JSON, has its bare name.
_COMMAND = re.compile(r"(?:(?<=`)|(?<=next: )|(?<=\$\())sluice(?= [a-z])")


def as_called(text: str) -> str:
    """Write the commands of a message as this process was started, such as `.venv/bin/sluice run flights`."""
    return _COMMAND.sub(lambda _: called(), text)


class HarmlessConsole(Console):
    """A console that no text commands: all but Rich's own Text is shown without markup or control characters.

    What is printed is a message, whose commands are as this process was started; values of others' are Text, by `shown`.
    """

    def __init__(
        self, *, stderr: bool = False, file: IO[str] | None = None, width: int | None = None
    ) -> None:
        super().__init__(stderr=stderr, file=file, width=width, highlight=False, soft_wrap=True)

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        **_: Any,
    ) -> Text:
        """Make Text of what is printed, or is in a cell or a title, whichever way it came here."""
        harmless = shown_lines(as_called(text))
        harmless.style, harmless.justify, harmless.overflow = style, justify, overflow
        return harmless


out = HarmlessConsole()
err = HarmlessConsole(stderr=True)


def require_new(file: Path | None, *, force: bool) -> None:
    """Raise SetupError for an --output that is there already, unless it is forced, before any work is done for it."""
    if file is not None and file.exists() and not force:
        raise _exists(file)


def write_output(text: str, file: Path, *, force: bool) -> None:
    """Write a text to a file. Raises SetupError where it is there already, or can't be written."""
    try:
        with file.open("w" if force else "x", encoding="utf-8") as sink:
            sink.write(text)
    except FileExistsError as there:
        raise _exists(file) from there
    except OSError as error:
        raise SetupError(f"{file} can't be written: {error}", remedy="name another --output") from error


def _exists(file: Path) -> SetupError:
    return SetupError(
        f"{file} exists already; it was not changed", remedy="name another --output, or add --force"
    )
