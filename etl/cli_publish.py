"""The command `sluice publish`."""

from __future__ import annotations

from typing import Annotated

import typer

from etl.command import PipelineName, here, load, who


def publish(
    name: PipelineName,
    under: Annotated[str, typer.Option("--as", metavar="SCHEMA.NAME", help="The name that readers use.")],
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take the name away instead; no row is touched.")
    ] = False,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Although it has not read all that the one before has.")
    ] = False,
) -> None:
    """Show a pipeline's rows under another name, in both sinks at once, in place of whose were seen there before."""
    from etl import published
    from etl.views import Name

    place = here()
    pipeline, wanted = load(name, place.settings), Name.of(under)
    dsn = place.services.postgres
    if withdraw:
        published.withdraw(dsn, pipeline.name, wanted)
        typer.echo(f"{wanted}: no longer there; the rows of {name} are in {pipeline.table}")
        return
    table = place.lake.table(pipeline.table)
    before = published.publish(dsn, pipeline, table, wanted, who=who(), incomplete=incomplete)
    instead = f", in place of those of {before}" if before not in (None, name) else ""
    typer.echo(f"{wanted}: readers of both sinks see the rows of {name}{instead}")
    if instead:
        typer.echo(f"next: to go back, `sluice publish {before} --as {wanted}`; {before} goes on as it was")
