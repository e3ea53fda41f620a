"""Compares a table with a pipeline's output columns: what it lacks, and whether it can be altered.

A table may gain columns, which are null in all rows before, and a column may become wider where every value stays the
same value in both sinks. Anything else would change what is already delivered, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

Kind = Any  # a common type, or a sink's own word for another one
WIDER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


@dataclass(frozen=True, kw_only=True)
class SchemaDifference:
    """How a table differs from what is to be delivered to it, by columns."""

    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # one sentence each: nothing can be delivered
    types: Mapping[str, str] = field(default_factory=dict)  # of those added and widened, in the sink's words

    def __bool__(self) -> bool:
        return bool(self.added or self.widened or self.others)

    @property
    def changes(self) -> dict[str, str]:
        """Return a phrase for each column that the table gains or that becomes wider."""
        done = {**dict.fromkeys(self.added, "added"), **dict.fromkeys(self.widened, "widened")}
        return {name: f"column {name} {what} ({self.types[name]})" for name, what in done.items()}


def changes_of_both(warehouse: SchemaDifference, lake: SchemaDifference) -> tuple[str, ...]:
    """Return a phrase for each column that is added or widened, in PostgreSQL's words; most are so in both tables."""
    there, here = warehouse.changes, lake.changes
    alone = {
        **dict.fromkeys(there.keys() - here.keys(), ", in PostgreSQL alone"),
        **dict.fromkeys(here.keys() - there.keys(), ", in the lake alone"),
    }
    return tuple(f"{phrase}{alone.get(name, '')}" for name, phrase in (here | there).items())


def difference(
    existing: Mapping[str, Kind], wanted: Mapping[str, Kind], type_name: Callable[[pa.DataType], str]
) -> SchemaDifference:
    """Compare the columns `existing` with those that are `wanted`; `type_name` writes a type as the sink does."""

    def said(kind: Kind) -> str:
        return kind if isinstance(kind, str) else type_name(kind)

    changed = [name for name, kind in wanted.items() if name in existing and existing[name] != kind]
    added = [name for name in wanted if name not in existing]
    widened = [name for name in changed if is_wider(existing[name], wanted[name])]
    others = [
        f"{name} is {said(existing[name])}, the pipeline delivers {said(wanted[name])}"
        for name in changed
        if not is_wider(existing[name], wanted[name])
    ]
    return SchemaDifference(
        added=tuple(added),
        widened=tuple(widened),
        others=(
            *others,
            *(f"{name} is not delivered by the pipeline" for name in existing if name not in wanted),
        ),
        types={
            **{name: said(wanted[name]) for name in added},
            **{name: f"{said(existing[name])} to {said(wanted[name])}" for name in widened},
        },
    )


def is_wider(before: Kind, after: Kind) -> bool:
    """Tell whether `after` is a wider type than `before`, with the same values in Iceberg and PostgreSQL.

    Source: Iceberg's table spec, "Schema Evolution": int to long, float to double, decimal to more digits.
    """
    if isinstance(before, str) or isinstance(after, str):
        return False
    if pa.types.is_decimal128(before) and pa.types.is_decimal128(after):
        return bool(before.scale == after.scale and before.precision < after.precision)
    return (before, after) in WIDER
