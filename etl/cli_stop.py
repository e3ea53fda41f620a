"""The command `sluice stop`, and what a signal does to a run that stays up."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from etl.command import PipelineName, duration, here, load, who

if TYPE_CHECKING:
    from etl.stay import Stay

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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


@contextmanager
def stopped_by_signals(stay: Stay) -> Iterator[None]:
    """The first SIGTERM or Ctrl-C ends the run after the batch in flight; a second one does as it did before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def ask(number: int, _frame: FrameType | None) -> None:
        stay.signalled = True
        stay.ask(signal.Signals(number).name)
        _put(before)

    for number in SIGNALS:
        signal.signal(number, ask)
    try:
        yield
    finally:
        _put(before)


def _put(handlers: dict[signal.Signals, signal._HANDLER]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
