"""`sluice init`: make a project of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from etl.cli.shared import out, shown
from etl.common.wording import pluralize


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="An empty folder, or one that is not there yet.")
    ],
) -> None:
    """Make a project: settings, a pipeline with its suite and a sample, DAGs, a test and a recipe for CI."""
    from etl.operations.projects.create import create

    files = create(folder)
    out.print(shown(f"{folder}: {pluralize(len(files), 'file')}"))
    for file in files:
        out.print(shown(f"  {file}"))
    there = folder.resolve() == Path.cwd()
    out.print(
        "next: `sluice check`"
        if there
        else shown(f"next: `cd {shlex.quote(str(folder))}`, then `sluice check`")
    )
