"""Tells which columns no table of PostgreSQL could hold, before a row is written.

Source: PostgreSQL 18 manual, appendix K (limits: columns of a table, of an index) and 66.6 (a row's layout on its page).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from etl.common.wording import pluralize

_COLUMNS = 1_600
_KEYS = 32
_ROW = 8_160  # bytes: a page of 8 KiB, less its header and the row's place in it
_HEADER = 23
_OWN = 3  # columns: what a row is identified by


def table_limits(columns: pa.Schema, keys: Sequence[str]) -> list[str]:
    """Return what of `columns`, in the common types, no table of PostgreSQL can have; one sentence each.

    A row is taken to have a value in each column but one, which makes it largest: then it has a map of its nulls. Texts,
    bytes and decimals are taken to be short; long ones PostgreSQL keeps elsewhere.
    """
    problems = []
    if len(columns) + _OWN > _COLUMNS:
        problems.append(
            f"it has {pluralize(len(columns), 'column')}, and a table of PostgreSQL at most {_COLUMNS - _OWN:,}"
            f" besides Sluice's {_OWN}"
        )
    elif (size := _largest_row(columns)) > _ROW:
        problems.append(
            f"a row with a value in each of its {pluralize(len(columns), 'column')} takes"
            f" {pluralize(size, 'byte')}, and a row of PostgreSQL at"
            f" most {_ROW:,}"
        )
    if len(keys) > _KEYS:
        problems.append(
            f"its key has {pluralize(len(keys), 'column')}, and an index of PostgreSQL at most {_KEYS}"
        )
    return problems


def _largest_row(columns: pa.Schema) -> int:
    size = _aligned(_HEADER + (len(columns) + _OWN + 7) // 8, 8)
    for column in columns:
        width = _width(column.type)
        size = _aligned(size, width) + width
    return _aligned(size + 16, 8) + 2 * 8  # a uuid, which may be anywhere, and two numbers


def _width(kind: pa.DataType) -> int:
    """Return how many bytes a value takes at least, which is also what its place is a multiple of."""
    return kind.bit_width // 8 if pa.types.is_primitive(kind) and not pa.types.is_boolean(kind) else 1


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to
