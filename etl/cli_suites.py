"""`sluice whatif`: suites over batches that are delivered already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etl.command import AsJson, PipelineName, here, load, print_json

Last = Annotated[int, typer.Option(metavar="N", help="How many of the newest batches.")]


def whatif(
    name: PipelineName,
    suite: Annotated[Path, typer.Option(metavar="FILE", help="The suite to try.")],
    last: Last = 20,
    as_json: AsJson = False,
) -> None:
    """Show what a changed suite would have made of the last batches; nothing is delivered or held by it."""
    from etl.whatif import what_if

    place = here()
    found = what_if(place, load(name, place.settings), suite, last=last)
    if as_json:
        print_json(found.json())
        return
    for line in found.lines():
        typer.echo(line)
