"""`sluice state`: what a transform keeps between batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from etl.command import AsJson, PipelineName, here, load, print_json, shown


def state(
    name: PipelineName,
    rows: Annotated[int, typer.Option(min=0, help="How many rows of each store are shown.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show what the transform keeps between batches: how many keys, and some of them. Nothing is changed."""
    from etl.kept import read_state

    place = here()
    found = read_state(place, load(name, place.settings), most=rows)
    if as_json:
        print_json([one.json() for one in found])
        return
    out = Console(soft_wrap=True)
    for store in found:
        out.print(
            shown(
                f"{name}: operator {store.operator} ({store.name}), store {store.store}, after batch {store.batch}:"
                f" {store.keys:,} keys"
            )
        )
        columns = [column for column in (store.rows[0] if store.rows else {}) if column != "partition_id"]
        table = Table(*columns, box=SIMPLE)
        for row in store.rows:
            table.add_row(*(shown(_text(row[column])) for column in columns))
        if store.rows:
            out.print(table)


def _text(value: Any) -> str:
    """A key or value as `name=value`, one after the other."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name}=({_text(one)})" if isinstance(one, Mapping) else f"{name}={one}"
            for name, one in value.items()
        )
    return str(value)
