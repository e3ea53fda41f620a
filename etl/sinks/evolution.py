"""Compares a table with a pipeline's output columns: what it lacks, and whether it can be altered.

A table may gain columns, which are null in all rows before, and a column may become wider where every value stays the
same value in both sinks. Anything else would change what is already delivered, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Kind = Any  # a common type, or a sink's own word for another one
WIDER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


@dataclass(frozen=True, kw_only=True)
class SchemaDifference:
    """How a table differs from what is to be delivered to it, by columns."""

    added: tuple[str, ...]
    widened: tuple[str, ...]
    others: tuple[str, ...]  # one sentence each: nothing can be delivered

    def __bool__(self) -> bool:
        return bool(self.added or self.widened or self.others)


def difference(
    existing: Mapping[str, Kind], wanted: Mapping[str, Kind], type_name: Callable[[pa.DataType], str]
) -> SchemaDifference:
    """Compare the columns `existing` with those that are `wanted`; `type_name` writes a type as the sink does."""

    def said(kind: Kind) -> str:
        return kind if isinstance(kind, str) else type_name(kind)

    changed = [name for name, kind in wanted.items() if name in existing and existing[name] != kind]
    others = [
        f"{name} is {said(existing[name])}, the pipeline delivers {said(wanted[name])}"
        for name in changed
        if not is_wider(existing[name], wanted[name])
    ]
    return SchemaDifference(
        added=tuple(name for name in wanted if name not in existing),
        widened=tuple(name for name in changed if is_wider(existing[name], wanted[name])),
        others=(
            *others,
            *(f"{name} is not delivered by the pipeline" for name in existing if name not in wanted),
        ),
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
