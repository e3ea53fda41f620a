"""`sluice contract`: write what a pipeline promises as a contract of the Open Data Contract Standard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etl.cli.shared import PipelineName, err, open_declared, out, print_result, result_to_stdout, shown
from etl.common.errors import SetupError


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

    if output is not None and output.exists() and not force:
        raise _exists(output)
    result_to_stdout(output is None)
    workspace, pipeline = open_declared(name, begins=True)
    written = write_contract(workspace, pipeline, version=version)
    for note in written.notes:
        err.print(shown(f"look at: {note}"))
    if output is None:
        print_result(written.text)
        return
    _write(output, written.text, force=force)
    out.print(shown(f"{name}: its contract, version {version}, is in {output}"))


def _write(file: Path, text: str, *, force: bool) -> None:
    try:
        with file.open("w" if force else "x", encoding="utf-8") as sink:
            sink.write(text)
    except FileExistsError as there:
        raise _exists(file) from there
    except OSError as error:
        raise SetupError(f"{file} can't be written: {error}", remedy="name another --output") from error


def _exists(file: Path) -> SetupError:
    return SetupError(
        f"{file} exists already; it was not changed", remedy="name another --output, or add --force"
    )
