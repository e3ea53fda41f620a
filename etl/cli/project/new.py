"""`sluice new`: draft a pipeline and its suite from a sample, or from a contract."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from etl.cli.shared import out, shown
from etl.common.errors import SetupError
from etl.common.settings import load_settings
from etl.common.wording import pluralize


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new pipeline's name, such as orders.")],
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A sample of what will land: .jsonl, .json, .csv, .parquet, or .gz of these."
        ),
    ] = None,
    contract: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A data contract instead: ODCS 3, in YAML.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="Which of the contract's tables, where it has several."),
    ] = None,
) -> None:
    """Draft a pipeline and its suite, with its schema, from a sample or a contract; nothing that is there is overwritten."""
    if like is not None and contract is None and table is None:
        _from_sample(name, like)
    elif contract is not None and like is None:
        _from_contract(name, contract, table)
    else:
        raise SetupError(
            "A draft is of one file: a sample, or a contract",
            remedy=f"`sluice new {name} --like FILE`, or `sluice new {name} --contract FILE`",
        )


def _from_sample(name: str, like: Path) -> None:
    from etl.operations.suites.new_pipeline import draft

    drafts = draft(name, like, load_settings())
    sample = drafts.sample
    rows = [
        (column.name, column.type, f"{len(column.values):,} of {sample.records:,}")
        for column in sample.columns
    ]
    out.print(shown(f"{name}: {pluralize(sample.records, 'record')} of {like} read as {sample.format}"))
    _show(("column", "declared", "has a value"), rows, drafts.notes())
    _show_files(drafts.pipeline, drafts.suite, drafts.rules)
    out.print(f"next: `sluice try {name} --input {shlex.quote(str(like))}`")


def _from_contract(name: str, contract: Path, table: str | None) -> None:
    from etl.operations.contracts.draft import draft

    drafts = draft(name, contract, load_settings(), table=table)
    promised = drafts.promised
    rows = [(column.name, column.type, column.description) for column in promised.columns]
    out.print(shown(f"{name}: contract {promised.table}, version {promised.version}, of {contract}"))
    _show(("column", "declared", "is"), rows, drafts.notes())
    _show_files(drafts.pipeline, drafts.suite, drafts.rules)
    out.print(f"next: `sluice try {name} --input FILE`")


def _show(columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str]) -> None:
    table = Table(*columns, box=SIMPLE)
    for row in rows:
        table.add_row(*map(shown, row))
    out.print(table)
    for note in notes:
        out.print(shown(f"look at: {note}"))


def _show_files(pipeline: Path, suite: Path, rules: int) -> None:
    out.print(shown(f"{os.path.relpath(pipeline)}"))
    out.print(shown(f"{os.path.relpath(suite)}: {pluralize(rules, 'rule')}"))
