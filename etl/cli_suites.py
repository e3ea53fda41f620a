"""`sluice whatif`, `suggest`, `docs` and `columns`: suites, verdicts and columns of batches that are delivered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from etl.command import AsJson, PipelineName, here, load, moment, print_json
from etl.errors import SetupError

if TYPE_CHECKING:
    from etl.history import By
    from etl.metrics import ColumnMetrics

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


def columns(
    name: PipelineName,
    since: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="Batches delivered from then on.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="MOMENT", help="And before then.")] = None,
    by: Annotated[
        str, typer.Option(metavar="all|month|day|batch", help="One line for each of these.")
    ] = "all",
    as_json: AsJson = False,
) -> None:
    """Show what the columns looked like over any span of batches, from the sketches kept with each; no row is read."""
    from etl.history import spans

    if by not in ("all", "month", "day", "batch"):
        raise SetupError(f"--by {by} is not known", remedy="--by all, month, day or batch")
    first = moment("--since", since) if since else None
    end = moment("--until", until) if until else None
    place = here()
    pipeline = load(name, place.settings)
    found = spans(place, pipeline, since=first, until=end, by=cast("By", by))
    if as_json:
        print_json([span.json() for span in found])
        return
    if not pipeline.metrics:
        typer.echo(
            f"{name} declares no `metrics`: name the columns there whose figures are to be kept", err=True
        )
    for span in found:
        heading = f"{span.start:%Y-%m-%d %H:%M}" if span.start else name
        typer.echo(f"{heading}   {span.batches:,} batches")
        for one in span.columns:
            typer.echo(f"  {one.column:<24} {_said(one)}")


def _said(one: ColumnMetrics) -> str:
    """A column's figures in one line."""
    said = [f"{one.rows:,} rows", f"{one.null_share or 0:.2%} null"]
    if (distinct := one.distinct_estimate()) is not None:
        said.append(f"about {distinct:,.0f} distinct")
    if one.mean is not None:
        said.append(
            f"{one.minimum:,.6g} to {one.maximum:,.6g}, mean {one.mean:,.6g} ± {one.deviation or 0:,.3g}"
        )
    if (median := one.quantile(0.5)) is not None:
        low, high = one.quantile(0.05), one.quantile(0.95)
        said.append(f"5 % below {low:,.6g}, half below {median:,.6g}, 95 % below {high:,.6g}")
    if one.latest is not None:
        said.append(f"{one.earliest:%Y-%m-%d %H:%M} to {one.latest:%Y-%m-%d %H:%M} UTC")
    return ", ".join(said)


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
