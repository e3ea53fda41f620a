"""Finds records that Arrow's parser probably does not take, for the others to be read at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.common.wording import is_utf8_text
from etl.sources.json_records.moments import Flags, flags

_COLUMN = re.compile(r"Column\(/(?:.*/)?([^/]+)\) changed from")
_MANY = 3  # patterns that are as fast one by one as together
# What a value begins with, by its type, if it is not null: within brackets of a pattern.
_BEGINS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_signed_integer, "-0-9"),
    (pa.types.is_floating, "-0-9NI"),
    (pa.types.is_decimal128, '-0-9"'),
    (pa.types.is_boolean, "tf"),
    (pa.types.is_struct, "{"),
    (pa.types.is_list, r"\["),
    (pa.types.is_string, '"'),
    (pa.types.is_timestamp, '"'),
    (pa.types.is_date32, '"'),
)


class Met:
    """Remembers by which patterns records were found that Arrow's parser does not take, to look for the like first."""

    def __init__(self, schema: pa.Schema) -> None:
        self._members = dict(_odd_members(pa.struct(schema)))
        self._integers = dict(_odd_integers(pa.struct(schema)))
        self._patterns: dict[str, None] = {}

    def by(self, error: str) -> bool:
        """Remember what a message of Arrow tells of members of another type; tell whether that is new."""
        before = len(self._patterns)
        if (column := _COLUMN.search(error)) and column[1] in self._members:
            self._patterns[self._members[column[1]]] = None
        elif "Failed to convert" in error:  # it does not say which
            self._patterns.update(dict.fromkeys(self._integers.values()))
        return len(self._patterns) > before

    def among(self, records: pa.Array) -> Flags:
        """Tell which records have such members."""
        patterns = list(self._patterns)
        if len(patterns) > _MANY:
            patterns = ["|".join(patterns)]
        found = np.zeros(len(records), np.bool_)
        for pattern in patterns:
            found |= flags(pc.match_substring_regex(records, pattern))
        return found


def not_utf8(records: pa.Array) -> Flags:
    """Tell which records are no UTF-8."""
    found = ~flags(pc.string_is_ascii(records.cast(pa.string(), safe=False)))
    found[found] = [not is_utf8_text(record) for record in records.filter(pa.array(found)).to_pylist()]
    return found


def _odd_members(kind: pa.DataType, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield by their name patterns of members that are not of their type, as their first characters tell.

    The quote before the name is left out: a search for the name's first letter is four times as fast.
    """
    begins = next((begin for is_one, begin in _BEGINS if is_one(kind)), None)
    if begins and name.isidentifier():
        yield name, rf'{name}"\s*:\s*[^\s{begins}n]'
    for inner in kind if pa.types.is_struct(kind) else ():
        yield from _odd_members(inner.type, inner.name)


def _odd_integers(kind: pa.DataType, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield by their name patterns of integers that have a point, an exponent, or about too many digits."""
    if pa.types.is_signed_integer(kind) and name.isidentifier():
        digits = len(str(2 ** (kind.bit_width - 1)))
        yield name, rf'{name}"\s*:\s*-?(?:[0-9]+[.eE]|[0-9]{{{digits},}})'
    for inner in kind if pa.types.is_struct(kind) else ():
        yield from _odd_integers(inner.type, inner.name)
