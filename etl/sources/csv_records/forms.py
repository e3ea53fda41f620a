"""Writes columns of texts that are in a dialect's own form as ISO 8601 and JSON do, for Arrow to make values of.

What has another form is null: `values` looks at it.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from etl.pipeline.csv_options import pattern_form

_DATE = ("year", "month", "day")
_CLOCK = ("hour", "minute", "second")


def iso(texts: pa.Array, pattern: str) -> pa.Array:
    """Write dates, or moments, of a pattern as ISO 8601 does; whether there is such a day is not looked at."""
    form = pattern_form(pattern)
    found = pc.extract_regex(texts, rf"\A{form}\z")
    parts = {field.name: pc.struct_field(found, field.name) for field in found.type}
    # Of one digit or two; a number in a pattern's place is one of zeros where the pattern has none.
    date, clock = (
        [pc.utf8_lpad(parts[name], 2, "0") if name in parts else pa.scalar("00") for name in some]
        for some in (_DATE, _CLOCK)
    )
    joined = pc.binary_join_element_wise(*date, "-")
    if not parts.keys() - set(_DATE):
        return joined
    joined = pc.binary_join_element_wise(joined, pc.binary_join_element_wise(*clock, ":"), "T")
    if "fraction" in parts:
        joined = pc.binary_join_element_wise(joined, pc.utf8_slice_codeunits(parts["fraction"], 0, 6), ".")
    return pc.binary_join_element_wise(joined, parts["zone"], "") if "zone" in parts else joined


def is_written_as_iso(kind: pa.DataType, pattern: str) -> bool:
    """Tell whether `iso` writes such texts: signs between the parts mean the same to RE2, and a day has no clock."""
    names = re.compile(pattern_form(pattern)).groupindex.keys()
    has_clock = bool(names - set(_DATE))
    return pattern.isascii() and pattern.isprintable() and not (pa.types.is_date32(kind) and has_clock)


def ungrouped(texts: pa.Array, thousands: str, decimal: str) -> pa.Array:
    """Write numbers whose digits are in groups of three without the signs between them; others stay as they are."""
    sign, point = re.escape(thousands), re.escape(decimal)
    form = rf"\A-?[0-9]{{1,3}}(?:{sign}[0-9]{{3}})+(?:{point}[0-9]+)?\z"
    grouped = pc.match_substring_regex(texts, form)
    return pc.if_else(grouped, pc.replace_substring(texts, thousands, ""), texts)
