"""`sluice alerts list | acknowledge | resolve | send`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from etl.cli.shared import (
    DONE_OR_NOT,
    AsJson,
    err,
    given_reason,
    load_if_right,
    open_workspace,
    out,
    print_json,
    shown,
    who,
)
from etl.common.errors import ServiceAway, SetupError
from etl.common.number_ranges import MOST
from etl.common.wording import pluralize
from etl.spark.signals import leaves

if TYPE_CHECKING:
    import datetime as dt

    from etl.alerts.outbox import Outbox
    from etl.ledger.telemetry.alerts import AlertState
    from etl.runs.workspace import Workspace

app = typer.Typer(
    no_args_is_help=True, help="See what people were told of, take it up, and send what is left."
)

CLOSED_LISTED = 100  # alerts, where those that are over are listed too
Numbers = Annotated[list[int], typer.Argument(metavar="ALERT…", min=1, max=MOST, help="Numbers of alerts.")]
Why = Annotated[str, typer.Option(callback=given_reason, help="What ended it, kept with the alert.")]


@app.command("list")
def list_alerts(
    name: Annotated[
        str | None, typer.Argument(metavar="[PIPELINE]", help="One pipeline; all by default.")
    ] = None,
    closed: Annotated[
        bool, typer.Option("--closed", help=f"Also those that are over, the newest {CLOSED_LISTED} of all.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the open alerts: what of, since when, who has it, and what was not sent yet."""
    from etl.common.database import transaction
    from etl.common.migrations import migrate
    from etl.ledger.telemetry.alerts import alerts

    workspace = open_workspace()
    if name is not None:
        load_if_right(name, workspace)  # or it is refused, where nobody knows the pipeline
    migrate(workspace.services.postgres)
    with transaction(workspace.services.postgres) as cursor:
        found = alerts(cursor, name, closed=closed, limit=CLOSED_LISTED if closed else None)
    if as_json:
        print_json([{**asdict(one.alert), "unsent": one.unsent, "problem": one.problem} for one in found])
    elif found:
        _show(found)
    else:
        out.print("no alert is open")


def _show(found: list[AlertState]) -> None:
    table = Table(Column("alert", justify="right"), "pipeline", "kind", "since", "times", "now", box=None)
    for state in found:
        one = state.alert
        kind = f"{one.kind} ({one.about})" if one.about else one.kind
        cells = (str(one.alert_id), one.pipeline, kind, _moment(one.opened_at), str(one.times), _now(state))
        table.add_row(*map(shown, cells))
    out.print(table)
    for state in found:
        out.print(shown(f"{state.alert.alert_id}: {state.alert.text}"))


def _now(state: AlertState) -> str:
    one = state.alert
    unsent = f", {pluralize(state.unsent, 'message')} not taken ({state.problem})" if state.problem else ""
    if one.resolved_at is not None:
        return f"over since {_moment(one.resolved_at)}: {one.resolved_by}"
    if one.acknowledged_by is not None:
        return f"{one.acknowledged_by} has it{unsent}"
    return f"open{unsent}"


def _moment(at: dt.datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}"


@app.command()
def acknowledge(numbers: Numbers) -> None:
    """Take alerts up, in your name: nobody is reminded of them any more, and who was told is told that you have them."""
    from etl.common.database import transaction
    from etl.ledger.telemetry import alerts

    leaves(DONE_OR_NOT)
    box = _outbox(open_workspace())
    with transaction(box.dsn) as cursor:
        done = alerts.acknowledge(cursor, numbers, who())
    _require(done, numbers, "open, and without somebody who has taken it up")
    _tell(box, f"{_these(done)}: you have taken it up; `sluice alerts resolve` ends what no delivery does")


@app.command()
def resolve(numbers: Numbers, why: Why) -> None:
    """End alerts that no delivery ends by itself, and tell who was told of them."""
    from etl.common.database import transaction
    from etl.ledger.telemetry import alerts

    leaves(DONE_OR_NOT)
    box = _outbox(open_workspace())
    with transaction(box.dsn) as cursor:
        done = alerts.resolve(cursor, numbers, f"{who()} ended it: {why}")
    _require(done, numbers, "open")
    _tell(box, f"{_these(done)}: over")


@app.command()
def send() -> None:
    """Look for what failed, was held, is late, too little or over, and send what is due; for where no Airflow does so."""
    from etl.pipeline import load_pipelines
    from etl.pipeline.loader import load_files

    workspace = open_workspace()
    box = _outbox(workspace)
    if not box.channels:
        raise SetupError(
            "Nothing says where alerts go that a command can reach",
            remedy="set SLUICE_ALERT_SLACK, or another one of docs/alerts.md; Airflow's Connections are for Airflow alone",
        )
    folders = workspace.settings.pipelines
    done = box.look(load_files(folders))
    out.print(f"{pluralize(done.sent, 'message')} sent")
    if done.problems:
        raise ServiceAway(
            f"Alerts are left: {'; '.join(done.problems)}",
            remedy="`sluice alerts send` sends them again, and so does Airflow",
        )
    load_pipelines(folders)  # a declaration that is not right is told after the others


def _outbox(workspace: Workspace) -> Outbox:
    """Return the outbox, with the channels that the settings alone lead to; Airflow has those of its Connections."""
    from etl.alerts.destinations import channels, named
    from etl.alerts.outbox import Outbox
    from etl.common.migrations import migrate

    migrate(workspace.services.postgres)
    settings = workspace.settings
    return Outbox(dsn=workspace.services.postgres, destinations=named(settings), channels=channels(settings))


def _require(done: list[int], numbers: list[int], what: str) -> None:
    """Raise SetupError where none of the alerts was as it has to be; warn of some that were not."""
    if not done:
        raise SetupError(
            f"Of {_these(numbers)} none is {what}; nothing was changed", remedy="`sluice alerts list`"
        )
    if others := sorted(set(numbers) - set(done)):
        err.print(f"{_these(others)}: not {what}")


def _tell(box: Outbox, said: str) -> None:
    """Print what was done, and send it at once as far as the settings alone lead; Airflow sends the rest."""
    out.print(said)
    for problem in box.send().problems:
        err.print(shown(f"not taken yet: {problem}; it is sent again"))


def _these(numbers: list[int]) -> str:
    return f"alert{'' if len(numbers) == 1 else 's'} {', '.join(map(str, sorted(numbers)))}"
