"""`sluice contract`: write what a pipeline promises as a contract of the Open Data Contract Standard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etl.cli.shared import (
    PipelineName,
    err,
    open_declared,
    out,
    print_result,
    require_new,
    result_to_stdout,
    shown,
    write_output,
)


def contract(
    name: PipelineName,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; standard output by default.")
    ] = None,
    version: Annotated[str, typer.Option(metavar="VERSION", help="The contract's own version.")] = "1.0.0",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write the pipeline's columns, rules, owner and promises of time as a data contract (ODCS 3.1, YAML)."""
    from etl.operations.contracts.write import write_contract

    require_new(output, force=force)
    result_to_stdout(output is None)
    workspace, pipeline = open_declared(name, begins=True)
    written = write_contract(workspace, pipeline, version=version)
    for note in written.notes:
        err.print(shown(f"look at: {note}"))
    if output is None:
        print_result(written.text)
        return
    write_output(written.text, output, force=force)
    out.print(shown(f"{name}: its contract, version {version}, is in {output}"))
