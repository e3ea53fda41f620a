"""What the commands of `sluice` share: their workspace, and the options that they take and print."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import math
import os
import re
import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.common.wording import visible

if TYPE_CHECKING:
    from etl.pipeline import Pipeline
    from etl.runs.workspace import Workspace


PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", help="The declared name.")]
_result: IO[str] | None = None  # where the result goes, once all else goes to standard error


def result_to_stdout(wanted: bool) -> bool:
    """Send all but the result to standard error from here on: what a pipeline's file, a library or a child prints, too."""
    global _result
    if wanted and _result is None:
        sys.stdout.flush()
        _result = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
        os.dup2(2, 1)
    return wanted


def print_result(text: str) -> None:
    """Print the command's result to standard output, which has nothing else where it goes apart."""
    typer.echo(text, nl=False, file=_result)


AsJson = Annotated[
    bool, typer.Option("--json", callback=result_to_stdout, help="Print one JSON document instead.")
]


def open_workspace(settings: Settings | None = None) -> Workspace:
    """Open the place that the settings (None: those in force) lead to, with its services running."""
    from etl.runs.workspace import Workspace

    return Workspace.open(settings)


def load(name: str, settings: Settings) -> Pipeline:
    from etl.pipeline import load_pipeline

    return load_pipeline(name, settings.pipelines)


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


def print_json(content: Any) -> None:
    """Print one JSON document; NaN and the infinities, which JSON does not have, are text in it."""
    print_result(json.dumps(_finite(content), indent=2, default=str, allow_nan=False) + "\n")


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else str(content)
    if isinstance(content, Mapping):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content


def shown(text: object) -> Text:
    """Return a value as a terminal may show it: without markup and control characters.

    A control character could command the terminal.
    """
    return Text(visible(str(text)))


def shown_lines(text: object) -> Text:
    """Return text of several lines, each as a terminal may show it: without markup or control characters."""
    return Text("\n").join(map(shown, str(text).split("\n")))


def who() -> str:
    """Return the user's name, or the number of a user who has none, as in a container."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # KeyError: Python before 3.13, of a uid that has no name
        return f"uid {os.getuid()}"


out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
