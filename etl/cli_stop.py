"""The command `sluice stop`."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from etl.command import PipelineName, duration, here, load, who


def stop(
    name: PipelineName,
    timeout: Annotated[str, typer.Option(help="How long to wait for it, such as 90s, 5m or 1h.")] = "5m",
) -> None:
    """Ask the run of a pipeline, on whatever machine, to stop after the batch in flight, and wait until it has."""
    from etl.live import run_command
    from etl.stop import stop as stop_run

    def asked(holder: str) -> None:
        typer.echo(f"{name}: asked the run on {holder} to stop after the batch in flight", err=True)

    limit = duration("--timeout", timeout)
    place = here()
    pipeline = load(name, place.settings)
    by = f"{who()} on {socket.gethostname()}"
    ended = stop_run(place.services.postgres, name, who=by, timeout=limit, asked=asked)
    if ended is None:
        typer.echo(f"{name}: nothing runs")
        return
    how, following = how_ended(ended.outcome, replayable=pipeline.replayable)
    typer.echo(f"{name}: the run on {ended.holder} {how}\nnext: `{run_command(pipeline)}` {following}")


def how_ended(outcome: str, *, replayable: bool) -> tuple[str, str]:
    """What a person is told of a run that has ended, and of the next one."""
    from etl.stop import DIED

    unfinished = (
        "what it had begun is the next run's to finish"
        if replayable
        else "what it had begun is in both sinks or in neither, and can't be read again"
    )
    how = {
        "stopped": "has stopped; all that it began is delivered",
        "done": "had read all there was, and ended by itself",
        DIED: f"is not alive; {unfinished}",
    }.get(outcome, f"ended with {outcome}")
    return how, "goes on from the ledger" if replayable else "begins a stream of its own"
