"""Turns columns of texts into declared types: most values at once by Arrow, the others one by one by `values`.

Arrow's casts take more than the contract of docs/reading.md, such as hexadecimal numbers, and fail as a whole. So each
type has a pattern of texts that Arrow is sure to make the same value of; tests compare both ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from etl.common.record_bounds import DEFAULT, Bounds
from etl.sources.csv_records.dialect import Dialect
from etl.sources.csv_records.forms import is_written_as_iso, iso, ungrouped
from etl.sources.csv_records.values import converter, date_pattern
from etl.sources.json_records.moments import Flags, flags, is_moment, moments
from etl.sources.json_records.values import Convert, Misfit

_DIGITS = {8: 2, 16: 4, 32: 9, 64: 18}  # of numbers that a type of so many bits has, whatever they are


@dataclass(frozen=True, kw_only=True)
class Column:
    """One declared column: makes values of texts, null of an empty one and of the text that stands for null."""

    field: pa.Field
    dialect: Dialect
    bounds: Bounds = DEFAULT

    def read(self, texts: pa.Array) -> tuple[pa.Array, dict[int, Misfit]]:
        """Return as many values, and by its number each text that is none of the type."""
        texts = without_nulls(texts, self.dialect)
        kind = self.field.type
        if kind in (pa.string(), pa.binary()):
            return texts.cast(kind), {}
        values, odd = self._at_once(texts)
        if not odd.any():
            return values, {}
        found, misfits = self._one_by_one(np.flatnonzero(odd), texts)
        return pc.replace_with_mask(values, pa.array(odd), pa.array(found, kind)), misfits

    def _at_once(self, texts: pa.Array) -> tuple[pa.Array, Flags]:
        """Make values of texts by Arrow; tell of which it is not sure to make the same as `values`, and null."""
        kind, dialect = self.field.type, self.dialect
        if is_moment(kind):
            values = self._moments(texts)
        elif self._sure is None:
            values = pa.nulls(len(texts), kind)
        else:
            numbers = texts
            if dialect.thousands and not pa.types.is_boolean(kind):
                numbers = ungrouped(texts, dialect.thousands, dialect.decimal)
            numbers = pc.if_else(pc.match_substring_regex(numbers, self._sure), numbers, None)
            if dialect.decimal != ".":
                numbers = pc.replace_substring(numbers, dialect.decimal, ".")
            values = numbers.cast(kind)
        return values, flags(pc.and_(values.is_null(), texts.is_valid()))

    def _moments(self, texts: pa.Array) -> pa.Array:
        kind = self.field.type
        if pattern := date_pattern(kind, self.dialect):
            if not is_written_as_iso(kind, pattern):
                return pa.nulls(len(texts), kind)
            texts = iso(texts, pattern)
        return moments(texts, kind)[0]

    def _one_by_one(self, numbers: np.ndarray, texts: pa.Array) -> tuple[list[object], dict[int, Misfit]]:
        found: list[object] = []
        misfits: dict[int, Misfit] = {}
        for number, text in zip(numbers.tolist(), texts.take(pa.array(numbers)).to_pylist(), strict=True):
            try:
                found.append(self._convert(text))
            except Misfit as misfit:
                found.append(None)
                misfits[number] = misfit.within(self.field.name)
        return found, misfits

    @cached_property
    def _convert(self) -> Convert:
        convert = converter(self.field.type, self.dialect, self.bounds)
        assert convert is not None, f"{self.field} is refused when the pipeline starts"
        return convert

    @cached_property
    def _sure(self) -> str | None:
        """Return the pattern of texts that Arrow makes the same value of as `values`; None: of none."""
        pattern = _sure(self.field.type, self.dialect)
        return None if pattern is None else rf"\A(?:{pattern})\z"


def without_nulls(texts: pa.Array, dialect: Dialect) -> pa.Array:
    """Make nulls of texts that stand for null, blanks taken off where the dialect says so."""
    if dialect.trim_left:
        texts = pc.ascii_ltrim_whitespace(texts)
    if dialect.trim_right:
        texts = pc.ascii_rtrim_whitespace(texts)
    empty = pc.equal(texts, "")
    if dialect.null:
        empty = pc.or_(empty, pc.equal(texts, dialect.null))
    return pc.if_else(empty, None, texts)


def _sure(kind: pa.DataType, dialect: Dialect) -> str | None:
    if pa.types.is_signed_integer(kind):
        return f"-?[0-9]{{1,{_DIGITS[kind.bit_width]}}}"
    if pa.types.is_boolean(kind):
        return "(?i:true|false)"
    if is_moment(kind):
        return None
    point = re.escape(dialect.decimal)
    if pa.types.is_decimal128(kind):
        whole = kind.precision - kind.scale
        return rf"-?[0-9]{{1,{whole}}}(?:{point}[0-9]{{1,{kind.scale}}})?" if whole and kind.scale else None
    return rf"-?[0-9]{{1,15}}(?:{point}[0-9]{{1,15}})?"
