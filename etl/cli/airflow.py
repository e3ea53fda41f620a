"""`sluice airflow` runs the local Airflow until it is asked to end; `sluice trigger` runs a pipeline through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from etl.cli.shared import PipelineName, err, open_declared, out, telling_of_new_home
from etl.common.settings import Settings, load_settings
from etl.spark.signals import leaves

if TYPE_CHECKING:
    from etl.airflow.local.installation import Airflow


def airflow(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]...",
            help="A command of Airflow's own, such as `backfill create …`, for the running Airflow; exits with its code.",
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once it is healthy.")] = False,
) -> None:
    """Start Airflow and the services it needs; Ctrl-C stops what this command started."""
    from etl import services
    from etl.airflow.local import stack

    settings = load_settings()
    if arguments:
        leaves("what Airflow's own command had done stays")
        raise typer.Exit(stack.command(settings, arguments))
    leaves("what it had started is stopped; the same command starts it again")
    at_rest = not any(service.port for service in services.status(settings))
    if stack.running(settings) is None:
        err.print("starting Airflow, half a minute or so")
    try:
        with telling_of_new_home(settings):
            running = stack.up(settings, supervised=not detach)
    except BaseException:
        if at_rest:
            services.down(settings)
        raise
    if detach or running.was_running:
        _say(running, stays=True)
        return
    try:
        stack.follow(running, lambda: _say(running, stays=False))
    finally:
        err.print("stopping Airflow")
        _end(settings, with_services=at_rest)


def _say(running: Airflow, *, stays: bool) -> None:
    out.print(f"Airflow  {running.address}{', running already' if running.was_running else ''}")
    out.print(f"login    admin or viewer; the passwords are in {running.login}")
    out.print(f"next: `sluice down` stops it{'' if stays else ', and so does Ctrl-C'}")


def trigger(name: PipelineName) -> None:
    """Run a pipeline through the local Airflow, which `sluice airflow` starts, and follow it to its end."""
    from etl.airflow.api import sign_in
    from etl.airflow.command.trigger import trigger as trigger_pipeline
    from etl.airflow.local import stack
    from etl.cli.progress import summary_lines
    from etl.common.errors import SetupError

    workspace, pipeline = open_declared(name)
    if pipeline.follow:
        raise SetupError(
            f"A run of {name} stays up: `sluice trigger` would wait for its end for ever",
            remedy=f"`sluice airflow dags unpause {name}` keeps one up; `sluice status {name}` shows what it does",
        )
    running = stack.require_running(workspace.settings)
    stack.require_same_folders(workspace.settings)
    api = sign_in(running.address, running.login)
    leaves(f"a run that Airflow had begun goes on there; `sluice status {name}` shows it")
    summary = trigger_pipeline(api, name, err.print)
    for line in summary_lines(workspace, pipeline, summary):
        out.print(line)


def where(settings: Settings) -> str | None:
    """Tell in a line where Airflow is, if it runs; None if it does not."""
    from etl.airflow.local import stack

    running = stack.running(settings)
    if running is None:
        return None
    return f"Airflow  {running.address}, the passwords of admin and viewer in {running.login}"


def _end(settings: Settings, *, with_services: bool) -> None:
    from etl import services
    from etl.airflow.local import stack

    stopped = stack.stop(settings)
    if with_services:
        stopped += services.down(settings)
    out.print(f"stopped {', '.join(stopped)}")
