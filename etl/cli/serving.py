"""`sluice publish`, `files`, `consumers`, `lineage`, `metrics` and `env`: what readers and other systems ask for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Column, Table

from etl.cli.shared import (
    DONE_OR_NOT,
    DONE_SO_FAR,
    AsJson,
    PipelineName,
    err,
    load_if_right,
    open_declared,
    open_workspace,
    out,
    print_json,
    print_result,
    result_to_stdout,
    shown,
    who,
)
from etl.common.errors import ServiceAway, SetupError
from etl.common.settings import load_settings
from etl.spark.signals import leaves

if TYPE_CHECKING:
    from etl.ledger.consumers import ConsumerLag


def publish(
    name: PipelineName,
    under: Annotated[str, typer.Option("--as", metavar="SCHEMA.NAME", help="The name that readers use.")],
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take the name away instead; no row is touched.")
    ] = False,
    incomplete: Annotated[
        bool,
        typer.Option(
            "--incomplete",
            help="Give the name even if this pipeline has not read all that the one before has.",
        ),
    ] = False,
) -> None:
    """Show a pipeline's rows under another name, in both sinks at once, instead of the rows that the name showed before."""
    from etl.operations.serving import publish
    from etl.sinks.lake.table import LakeTable
    from etl.sinks.warehouse.views import Name

    leaves(DONE_OR_NOT)
    wanted = Name.of(under)
    if withdraw:
        workspace = open_workspace()
        load_if_right(name, workspace)  # one that is declared no more may have a name yet
        publish.withdraw(workspace.services.postgres, name, wanted)
        out.print(f"{wanted}: no longer there; the rows of {name} stay where they are")
        return
    workspace, pipeline = open_declared(name)
    dsn = workspace.services.postgres
    table = LakeTable.of(workspace.lake, pipeline.table)
    replaced = publish.publish(dsn, pipeline, table, wanted, who=who(), incomplete=incomplete)
    instead = f", in place of those of {replaced}" if replaced not in (None, name) else ""
    out.print(f"{wanted}: readers of both sinks see the rows of {name}{instead}")
    if instead:
        out.print(
            f"next: to go back, `sluice publish {replaced} --as {wanted}`; {replaced} goes on as it was"
        )


def env() -> None:
    """Print shell exports of the settings in force. They include passwords and keys: for `eval` only."""
    from etl.operations.serving.environment import exports

    for name, value in exports(open_workspace(begins=True)).items():
        print_result(f"export {name}={shlex.quote(value)}\n")


def files(name: PipelineName, as_json: AsJson = False) -> None:
    """List exactly the committed Parquet files of live deliveries."""
    from etl.operations.serving.read import committed_files

    result_to_stdout(True)
    workspace, pipeline = open_declared(name)
    committed = committed_files(workspace, pipeline)
    if as_json:
        print_json(committed.json())
    else:
        print_result("".join(f"{file.path}\n" for file in committed.files))


def consumers(
    name: Annotated[
        str | None, typer.Argument(metavar="[PIPELINE]", help="One pipeline; all by default.")
    ] = None,
    consumer: Annotated[
        str | None, typer.Argument(metavar="[CONSUMER]", help="The consumer to put elsewhere, or to forget.")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="DELIVERY",
            help="Put its place behind this delivery, or to `start` or `newest`; a new name makes a consumer there.",
        ),
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget it; a sweep keeps nothing for it any more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List who reads what pipelines have delivered, up to where, and how far each is behind."""
    from etl.common.errors import SetupError
    from etl.operations.serving import consumers as serving

    if (after is not None or forget) and consumer is None:
        raise SetupError(
            "Whose place is meant?", remedy="`sluice consumers PIPELINE CONSUMER --after DELIVERY`"
        )
    if after is not None and forget:
        raise SetupError("Give either --after or --forget", remedy="`sluice consumers --help`")
    workspace = open_workspace()
    if name is not None:
        load_if_right(name, workspace)  # or it is refused, where nobody knows the pipeline
    if name is not None and consumer is not None and after is not None:
        leaves(DONE_SO_FAR)
        serving.put(workspace, name, consumer, after)
    elif name is not None and consumer is not None and forget:
        leaves(DONE_SO_FAR)
        serving.forget(workspace, name, consumer)
        if not as_json:
            out.print(shown(f"{consumer}: no longer a consumer of {name}"))
            return
    found = [
        one for one in serving.lags(workspace.services.postgres, name) if consumer in (None, one.consumer)
    ]
    if as_json:
        print_json([one.json() for one in found])
    elif not found:
        whom = "" if consumer is None else f" called {consumer}"
        out.print(shown(f"no consumer{whom}; etl.changes(…, consumer=…) makes one: docs/consumers.md"))
    else:
        out.print(_lag_table(found))
        for one in found:
            if one.late and one.seconds is not None and one.limit_seconds is not None:
                behind, limit = _roughly(one.seconds), _roughly(one.limit_seconds)
                out.print(shown(f"{one.pipeline}: {one.consumer} is {behind} behind, more than {limit}"))


def _lag_table(found: Sequence[ConsumerLag]) -> Table:
    texts, figures = ("pipeline", "consumer"), ("has read", "newest", "deliveries", "rows", "behind", "moved")
    columns = (Column(name, overflow="fold") for name in texts)
    counts = (Column(name, justify="right", no_wrap=True) for name in figures)
    table = Table(*columns, *counts, box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for one in found:
        places = (
            str(place) if place is not None else "-" for place in (one.delivery_id, one.newest_delivery)
        )
        behind = "-" if one.seconds is None else _roughly(one.seconds)
        moved = "never" if one.moved_at is None else f"{one.moved_at.astimezone():%m-%d %H:%M}"
        lag = (f"{one.deliveries:,}", f"{one.rows:,}", behind)
        table.add_row(one.pipeline, one.consumer, *places, *lag, moved)
    return table


def _roughly(seconds: float) -> str:
    """Write a time in its largest unit of which it has more than one."""
    for unit, of in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * of:
            return f"{seconds / of:,.0f} {unit}"
    return f"{seconds:.0f} s"


def lineage(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[PIPELINE]", help="The declared name; without it, every pipeline."),
    ] = None,
    deliveries: Annotated[
        str | None,
        typer.Option(help="Send the events of these again, such as 4..7, whether sent before or not."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send the OpenLineage events that were not sent yet, or those of chosen deliveries again."""
    from etl.common.number_ranges import parse_ranges
    from etl.common.wording import pluralize
    from etl.runs.telemetry.outbox import require_openlineage

    if deliveries and not name:
        raise SetupError("--deliveries needs a pipeline", remedy="`sluice lineage --help`")
    settings = load_settings()
    require_openlineage(settings)
    workspace = open_workspace(settings)
    if name:
        load_if_right(name, workspace)  # or it is refused, where nobody knows the pipeline
    from etl.runs.telemetry.sending import send_chosen, send_unsent

    if name and deliveries:
        done = send_chosen(workspace, name, parse_ranges("--deliveries", deliveries))
    else:
        done = send_unsent(workspace, name)
    if as_json:
        print_json(done.json())
    else:
        out.print(f"{pluralize(done.sent, 'event')} sent")
    if done.problems:
        raise ServiceAway(
            "; ".join(done.problems), remedy="`sluice lineage`, when the receiver takes events again"
        )


def metrics(
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Stay up and answer Prometheus there, on loopback unless a host is named.",
        ),
    ] = None,
) -> None:
    """Print what the ledger says of pipelines, runs and consumers as Prometheus' text, or answer scrapes with it."""
    from etl.common.database import transaction
    from etl.common.migrations import migrate
    from etl.ledger.telemetry.metrics import LedgerCollector, text

    workspace = open_workspace()
    dsn = workspace.services.postgres
    migrate(dsn)
    if listen is None:
        with transaction(dsn, one_snapshot=True) as cursor:
            print_result(text(cursor))
        return
    from prometheus_client import CollectorRegistry, start_http_server

    host, port = _host_and_port(listen)
    registry = CollectorRegistry()
    registry.register(LedgerCollector(dsn=dsn))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SetupError(
            f"Nothing can listen on {host}:{port}: {error.strerror}", remedy="choose another"
        ) from error
    leaves("nothing was changed")
    err.print(shown(f"metrics are at http://{host}:{server.server_port}/metrics, until Ctrl-C"))
    thread.join()


def _host_and_port(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not (port.isdecimal() and int(port) < 65_536):
        raise SetupError(f"--listen {listen}: no port", remedy="such as --listen 9464")
    return host.strip("[]") or "127.0.0.1", int(port)
