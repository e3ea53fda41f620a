"""`sluice run` and `sluice stop`: start a run, and ask one to stop."""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from etl.cli.shared import (
    AsJson,
    PipelineName,
    duration,
    err,
    load_if_right,
    open_declared,
    open_workspace,
    out,
    print_json,
    shown,
    standard_input,
    who,
)
from etl.common.database import kept_connections
from etl.common.errors import SluiceError, Stopped
from etl.common.settings import load_settings, with_spark_conf
from etl.spark.signals import leaves

Timeout = Annotated[str, typer.Option(help="How long to wait for it, such as 90s, 5m or 1h.")]
Conf = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A setting of Spark for this run; repeatable."),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Stay up and deliver new files as they land, until Ctrl-C, SIGTERM or `sluice stop`.",
    ),
]
Every = Annotated[
    str | None,
    typer.Option(help="With --follow: how often to look for more, such as 10s; default: as declared."),
]
Closed = Annotated[
    bool,
    typer.Option("--closed", help="Look into closed folders as well (`open_for=`), for what landed late."),
]
FromAirflow = Annotated[
    bool,
    typer.Option("--airflow", hidden=True, help="The Airflow try that asks is on standard input, as JSON."),
]


def stop(name: PipelineName, timeout: Timeout = "5m") -> None:
    """Ask the run of a pipeline, on whatever machine, to stop after the batch in flight, and wait until it has."""
    from etl.operations.control.stop import beside
    from etl.operations.control.stop import stop as stop_run
    from etl.pipeline.replayability import run_command

    def report_holder(holder: str) -> None:
        leaves("the run stays asked to stop, and ends after its batch")
        host, _, pid = holder.partition("/")
        err.print(
            shown(
                f"{name}: asked the run on {holder} to stop after the batch in flight; what ends it harder is a"
                f" second signal: `kill {pid}` on {host}, twice. Its batch is then delivered whole or not at all"
            )
        )

    limit = duration("--timeout", timeout)
    workspace = open_workspace()
    pipeline = load_if_right(name, workspace)
    by = f"{who()} on {socket.gethostname()}"
    ended = stop_run(workspace.services.postgres, name, who=by, timeout=limit, on_asked=report_holder)
    if ended is None:
        others = beside(workspace.services.postgres, name)
        out.print(
            shown(f"{name}: nothing runs" if not others else f"{name}: no run of the stream is at work")
        )
        for one in others:
            out.print(
                f"a {one.kind} runs on {one.where}, since {one.since:%Y-%m-%d %H:%M:%S}, which `sluice stop` does not"
                f" ask: `kill {one.pid}` there ends it with nothing changed, or after the commit under way"
            )
        return
    how, following = how_ended(ended.outcome, replayable=pipeline is None or pipeline.replayable)
    out.print(shown(f"{name}: the {'recovery' if ended.again else 'run'} on {ended.holder} {how}"))
    if ended.again:
        out.print(f"next: `{ended.again}`")
    elif pipeline is not None:
        out.print(f"next: `{run_command(pipeline)}` {following}")


def how_ended(outcome: str, *, replayable: bool) -> tuple[str, str]:
    """Return two phrases for a person: how a run has ended, and where the next one begins."""
    from etl.operations.control.stop import DIED

    unfinished = (
        "the next run finishes what it had begun"
        if replayable
        else "what it had begun is in both sinks or in neither, and can't be read again"
    )
    how = {
        "stopped": "has stopped; every batch that it began is delivered",
        "done": "came to its own end",
        "Stopped": "was ended before it was done",
        DIED: f"is not alive; {unfinished}",
    }.get(outcome, f"ended with {outcome}")
    return how, "goes on from the ledger" if replayable else "begins a stream of its own"


@kept_connections()
def run(
    name: PipelineName,
    as_json: AsJson = False,
    conf: Conf = None,
    follow: Follow = False,
    every: Every = None,
    closed: Closed = False,
    airflow: FromAirflow = False,
) -> None:
    """Deliver all that has landed, batch by batch, and stop; Ctrl-C or SIGTERM ends it after the batch in flight."""
    from etl.airflow.task_try import TaskTry
    from etl.cli.progress import summary_lines, watching
    from etl.common.errors import SetupError
    from etl.runs.follow import RunControl, heeded
    from etl.runs.run import run as run_stream
    from etl.runs.summary import Summary

    if every and not follow:
        raise SetupError("--every needs --follow", remedy="`sluice run --help`")
    task_try = TaskTry.parse(standard_input()) if airflow else None  # before a pipeline's file could read it
    settings = with_spark_conf(load_settings(), conf or [])
    workspace, pipeline = open_declared(name, settings, begins=True)
    leaves(
        Stopped.LEFT
        if pipeline.replayable
        else "its batch is in both sinks or in neither; the next run begins a stream of its own"
    )
    follow = follow or (pipeline.follow and not pipeline.replayable)
    again = (duration("--every", every) if every else pipeline.every) if follow else None
    control = RunControl(every=again, closed=closed)
    try:
        with heeded(control, quiet=err.is_terminal), watching(pipeline, err, control) as progress:
            if task_try is None:
                summary = run_stream(workspace, pipeline, progress=progress, control=control)
            else:
                from etl.airflow.command.request import (
                    run_requested,  # with all of replays, which take a second
                )

                summary = run_requested(workspace, pipeline, task_try, progress, err.print, control)
    except SluiceError as error:
        if as_json and isinstance(error.done, Summary):
            print_json(error.done.json())
        raise
    if as_json:
        print_json(summary.json())
    else:
        for line in summary_lines(workspace, pipeline, summary):
            out.print(line)
    if control.heeded and control.by_signal and not follow:  # there was more to deliver
        raise Stopped(control.by_signal)
