"""`sluice whatif`, `suggest` and `docs`: suites and verdicts of batches that are delivered already."""

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


def suggest(
    name: PipelineName,
    last: Last = 20,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; standard output by default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Draft a suite from the last batches, each expectation with its evidence in its notes."""
    from etl.suggest import exists, write
    from etl.suggest import suggest as draw

    if output is not None and output.exists() and not force:
        raise exists(output)
    place = here()
    found = draw(place, load(name, place.settings), last=last)
    if output is None:
        typer.echo(found.text, nl=False)
        return
    write(found, output, force=force)
    rules = len(found.suite["expectations"])
    typer.echo(f"{rules} expectations from {found.rows:,} rows of {found.batches:,} batches in {output}")
    typer.echo(f"next: `sluice whatif {name} --suite {output}`")


def docs(
    name: PipelineName,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to; below SLUICE_HOME by default.")
    ] = None,
    last: Last = 20,
) -> None:
    """Build Great Expectations' Data Docs of the last batches: static pages with nothing in them that runs."""
    from etl.datadocs import build_docs

    place = here()
    folder = output or Path(place.settings.home) / "docs" / name
    found = build_docs(place, load(name, place.settings), folder, last=last)
    typer.echo(f"{len(found):,} batches in {folder / 'index.html'}")
