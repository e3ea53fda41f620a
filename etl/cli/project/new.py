"""`sluice new`: draft a pipeline and its suite from a sample."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from etl.cli.shared import out, shown
from etl.common.settings import load_settings
from etl.common.wording import pluralize


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new pipeline's name, such as orders.")],
    like: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="A sample of what will land: .jsonl, .json, .csv, .parquet, or .gz of these."
        ),
    ],
) -> None:
    """Draft a pipeline and its suite from a sample, with its schema; nothing that is there is overwritten."""
    from etl.operations.suites.new_pipeline import draft

    drafts = draft(name, like, load_settings())
    sample = drafts.sample
    table = Table("column", "declared", "has a value", box=SIMPLE)
    for column in sample.columns:
        table.add_row(shown(column.name), shown(column.type), f"{len(column.values):,} of {sample.records:,}")
    out.print(shown(f"{name}: {pluralize(sample.records, 'record')} of {like} read as {sample.format}"))
    out.print(table)
    for note in drafts.notes():
        out.print(shown(f"look at: {note}"))
    out.print(shown(f"{os.path.relpath(drafts.pipeline)}"))
    out.print(shown(f"{os.path.relpath(drafts.suite)}: {pluralize(drafts.rules, 'rule')}"))
    out.print(f"next: `sluice try {name} --input {shlex.quote(str(like))}`")
