"""`sluice publish`, `files` and `env`: names, objects and settings for readers."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from etl.cli.shared import (
    DONE_OR_NOT,
    AsJson,
    PipelineName,
    load_if_right,
    open_declared,
    open_workspace,
    out,
    print_json,
    print_result,
    result_to_stdout,
    who,
)
from etl.spark.signals import leaves


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
