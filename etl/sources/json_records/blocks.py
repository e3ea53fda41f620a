"""Reads many JSON records at once: by Arrow's parser where that is sure to give what `lines` gives, else by `lines`.

Arrow's parser is about eight times as fast. It takes less than the contract of docs/reading.md, and what it takes it
takes alike; the few exceptions are looked for below, and tests compare both ways. It tells of a number of records at once
that they are good, or of one that is not: so those that it does not take are found, and blank in what it is given.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from etl.common.record_bounds import DEFAULT, Bounds
from etl.common.record_columns import DETAIL, HELD_UNKNOWN, MALFORMED_COLUMN, UNKNOWN
from etl.sources.counts import Drift
from etl.sources.json_records.lines import members_of
from etl.sources.json_records.moments import Flags, beyond_years, flags, is_moment, moments
from etl.sources.json_records.odd import Met, not_utf8
from etl.sources.json_records.values import Convert, Members, Misfit, converter, text_of

FEW = 32  # records that are not worth a call of Arrow's parser
PIECE = 256  # records that are tried together once some of many are not taken
PARTINGS = 20  # how often records are parted before those that were taken must be many times as many
NAMES = 20_000  # of members that a piece may have, if it is read at once
WORTH = 20  # records for each parting: where they are fewer, one by one is faster
BESIDE = pa.schema({MALFORMED_COLUMN: pa.string(), DETAIL: pa.string()})  # columns beside the declared ones
_ROW = re.compile(r" in row (\d+)$")
_CONSTANT = "NaN|Inf"
_LONG_EXPONENT = "[eE][-+]?[0-9]{3}"


@dataclass(frozen=True, kw_only=True)
class JsonReader:
    """Reads records into rows of one schema, each beside the text of a malformed one and what is wrong with it.

    A last column UNKNOWN of the schema takes the members that the other columns do not name.
    """

    schema: pa.Schema
    holds_unknown: bool = False  # such members make a record malformed
    bounds: Bounds = DEFAULT  # what is beyond them is malformed, too

    def read(self, records: pa.Array, drift: Drift | None = None) -> pa.RecordBatch:
        """Read records (binary) into as many rows, in their order: the schema's columns and those of BESIDE.

        A null is a row of nulls, and not malformed. `drift` counts what the rows have that the schema does not name.
        """
        drift = Drift() if drift is None else drift
        rows, apart = self._at_once(records, drift.unknown)
        if apart.any():
            others = self._one_by_one(records.filter(pa.array(apart)).to_pylist(), drift.unknown)
            rows = _put(others, rows, apart)
        return rows

    @cached_property
    def _declared(self) -> pa.Schema:
        return pa.schema([one for one in self.schema if one.name != UNKNOWN])

    @property
    def _keeps_unknown(self) -> bool:
        return len(self._declared) < len(self.schema)

    @cached_property
    def _convert(self) -> Convert:
        convert = converter(pa.struct(self._declared), self.bounds)
        assert convert is not None
        return convert

    @cached_property
    def _read_as(self) -> pa.Schema | None:
        """Return the schema as Arrow's parser is given it; None where it does not have one of the types, or is too deep."""
        kinds = [_read_as(field.type) for field in self._declared]
        too_deep = _depth(pa.struct(self._declared)) > self.bounds.record_depth
        return (
            None
            if too_deep or None in kinds
            else pa.schema(list(zip(self._declared.names, kinds, strict=True)))
        )

    @cached_property
    def _met(self) -> Met:
        return Met(self._declared)

    def _at_once(self, records: pa.Array, unknown: Counter[str]) -> tuple[pa.RecordBatch, Flags]:
        """Read records by Arrow's parser; tell which it does not take, whose rows are of nulls.

        Counts in `unknown` what is not declared.
        """
        apart = ~self._plain(records) | self._met.among(records)
        finders = [not_utf8, self._named]
        while len(records) - np.count_nonzero(apart) >= FEW:
            blank = pc.if_else(pa.array(apart), b"{}", records) if apart.any() else records
            try:
                rows, odd = self._parsed(blank, unknown)
                return rows, apart | odd
            except _Unfit as unfit:
                apart = apart | unfit.rows
            except pa.ArrowInvalid as error:
                if self._met.by(str(error)):
                    apart = apart | self._met.among(blank)
                elif len(records) > PIECE and finders:
                    apart = apart | finders.pop(0)(blank)
                else:
                    return self._in_parts(records, apart, unknown)
        return self._nothing(len(records)), np.ones(len(records), np.bool_)

    def _named(self, records: pa.Array) -> Flags:
        """Tell which records Arrow's parser names when it does not take them; of some it names the first."""
        assert self._read_as is not None
        odd, at = np.zeros(len(records), np.bool_), 0
        while at < len(records):
            some = records.slice(at, 2 * PIECE)
            try:
                _parse(some, self._read_as, self.bounds, lenient=self._lenient)
                at += len(some)
            except _Unfit as unfit:
                odd[at : at + len(some)] |= unfit.rows
                at += len(some)
            except pa.ArrowInvalid as error:
                if (row := _row(str(error), len(some))) is None:
                    break
                odd[at + row] = True
                at += row + 1
        return odd

    def _in_parts(
        self, records: pa.Array, apart: Flags, unknown: Counter[str]
    ) -> tuple[pa.RecordBatch, Flags]:
        """Read records as `_at_once` does, but a few at a time, and fewer where some of them are not taken."""
        left = np.flatnonzero(~apart)
        todo = [left[at : at + PIECE] for at in range(0, len(left), PIECE)]
        found, where = [self._nothing(0)], np.full(len(records), -1)
        taken = partings = 0
        while todo:
            some = todo.pop()
            if len(some) < FEW or partings > PARTINGS + taken // WORTH:
                continue
            part = records.take(pa.array(some))
            try:
                rows, odd = self._parsed(part, unknown)
            except (_Unfit, pa.ArrowInvalid) as error:
                partings += 1
                todo += [some[one] for one in reversed(_parting(error, len(some)))]
                continue
            where[some[~odd]] = np.flatnonzero(~odd) + taken
            taken += len(some)
            found.append(rows)
        missing = where < 0
        return pa.concat_batches(found).take(pa.array(where, mask=missing)), missing

    def _plain(self, records: pa.Array) -> Flags:
        """Tell which records may be given to Arrow's parser: those that begin and end as an object does.

        It dies of a decimal with an exponent of minus a thousand millions (Arrow 26).
        """
        if self._read_as is None:
            return np.zeros(len(records), np.bool_)
        plain = pc.and_(pc.starts_with(records, b"{"), pc.ends_with(records, b"}"))
        if _has_decimals(pa.struct(self.schema)):
            plain = pc.and_not(plain, pc.match_substring_regex(records, _LONG_EXPONENT))
        return flags(plain) & self._within(records)

    def _within(self, records: pa.Array) -> Flags:
        """Tell which records are sure to be within the bounds of bytes and of fields."""
        lengths = pc.binary_length(records).fill_null(0)
        within, longest = pc.less_equal(lengths, self.bounds.record_bytes), pc.max(lengths).as_py() or 0
        if longest > self.bounds.record_fields:  # each has a byte at least
            within = pc.and_(within, pc.less_equal(_most_fields(records), self.bounds.record_fields))
        return flags(within)

    @cached_property
    def _lenient(self) -> bool:
        return not (self._keeps_unknown or self.holds_unknown)

    def _parsed(self, records: pa.Array, unknown: Counter[str]) -> tuple[pa.RecordBatch, Flags]:
        """Read records by Arrow's parser; tell which it did not take, whose rows are of nulls.

        Raises ArrowInvalid where it does not know which, or _Unfit where it is to be given the others alone.
        """
        assert self._read_as is not None
        records.cast(pa.string())  # which it does not look at
        parsed, has_more = _parse(records, self._read_as, self.bounds, lenient=self._lenient)
        odd = np.zeros(len(records), np.bool_)
        columns = []
        for one in self._declared:
            column, unfit = _exact(parsed[one.name].combine_chunks(), one.type)
            columns.append(column)
            odd = odd if unfit is None else odd | unfit
        if odd.any():
            columns = [pc.if_else(pa.array(odd), None, column) for column in columns]
        if has_more:
            unknown.update(_beyond(records.filter(pa.array(~odd)), self._read_as, self.bounds))
        others = self._rows.types[len(columns) :]
        columns += [pa.nulls(len(records), kind) for kind in others]
        return pa.RecordBatch.from_arrays(columns, schema=self._rows), odd

    def _one_by_one(self, records: Sequence[bytes | None], unknown: Counter[str]) -> pa.RecordBatch:
        rows: list[dict[str, Any]] = []
        for record in records:
            try:
                rows.append({} if record is None else self._row(members_of(record, self.bounds), unknown))
            except Misfit as misfit:
                rows.append({MALFORMED_COLUMN: self.bounds.text(record or b""), DETAIL: str(misfit)})
        some = {name for row in rows for name in row}
        arrays = [
            pa.array([row.get(one.name) for row in rows], one.type)
            if one.name in some
            else pa.nulls(len(rows), one.type)
            for one in self._rows
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._rows)

    def _row(self, members: Members, unknown: Counter[str]) -> dict[str, Any]:
        """Convert the members of a record; raise Misfit where it is malformed."""
        beyond = Members([one for one in members if one[0] not in self._names])
        with_value = [name for name, value in beyond if value is not None]
        if with_value and self.holds_unknown:
            raise Misfit(HELD_UNKNOWN, with_value[0])
        row: dict[str, Any] = self._convert(members)
        if beyond and self._keeps_unknown:
            row[UNKNOWN] = text_of(beyond)
        if with_value:
            unknown.update(set(with_value))
        return row

    def _nothing(self, count: int) -> pa.RecordBatch:
        """Return so many rows of nulls."""
        nulls = [pa.nulls(count, kind) for kind in self._rows.types]
        return pa.RecordBatch.from_arrays(nulls, schema=self._rows)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._declared.names)

    @cached_property
    def _rows(self) -> pa.Schema:
        return pa.schema([*self.schema, *BESIDE])


class _Unfit(Exception):
    """Some values are not what is declared."""

    def __init__(self, rows: pa.Array) -> None:
        super().__init__()
        self.rows = flags(rows)


def _row(message: str, count: int) -> int | None:
    """Return which of so many records a message of Arrow names; None: it names none."""
    named = _ROW.search(message)
    return int(named[1]) if named and int(named[1]) < count else None


def _parting(error: _Unfit | pa.ArrowInvalid, count: int) -> list[Any]:
    """Part records that were not taken: without those that are known, at the one that is named, or in the middle."""
    if isinstance(error, _Unfit):
        return [~error.rows]
    if (row := _row(str(error), count)) is not None:
        return [slice(row), slice(row + 1, None)]
    return [slice(count // 2), slice(count // 2, None)]


def _put(some: pa.RecordBatch, rows: pa.RecordBatch, where: Flags) -> pa.RecordBatch:
    """Put rows in the place of others, which are of nulls."""
    at = np.arange(len(rows))
    at[where] = len(rows) + np.arange(len(some))
    taken = pa.array(at)
    columns = [
        nulls if theirs.null_count == len(theirs) else pa.concat_arrays([nulls, theirs]).take(taken)
        for nulls, theirs in zip(rows.columns, some.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _has_decimals(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _has_decimals(kind.value_type)
    return pa.types.is_decimal128(kind) or (
        pa.types.is_struct(kind) and any(_has_decimals(inner.type) for inner in kind)
    )


def _depth(kind: pa.DataType) -> int:
    """Count the levels of objects and arrays that a type has at most."""
    if pa.types.is_list(kind):
        return 1 + _depth(kind.value_type)
    return 1 + max((_depth(inner.type) for inner in kind), default=0) if pa.types.is_struct(kind) else 0


def _most_fields(records: pa.Array) -> pa.Array:
    """Count what stands before a member or an element, or within a text: no fewer than a record has."""
    return pc.add(pc.count_substring(records, b","), _brackets(records))


def _brackets(records: pa.Array) -> pa.Array:
    return pc.add(pc.count_substring(records, b"{"), pc.count_substring(records, b"["))


def _parse(records: pa.Array, schema: pa.Schema, bounds: Bounds, *, lenient: bool) -> tuple[pa.Table, bool]:
    """Parse records that each look whole; raise ArrowInvalid unless each is one object.

    Where `lenient` they may have members beyond the schema, and it is told whether some have.

    Where the lines of several would be one object, a line break would be within a text, or none would be between two
    members: neither is JSON. So as many objects as records are one a record.
    """
    text = joined(records)
    try:
        return _table(text, len(records), schema, "error"), False
    except pa.ArrowInvalid as error:
        if not lenient or "unexpected field" not in str(error):
            raise
    _require_usual(records, bounds)
    return _table(text, len(records), schema, "ignore"), True


def _pieces(records: pa.Array) -> Iterator[pa.Array]:
    """Part records into pieces of few names: each may have its own, and each name is a column of a piece's records."""
    names = np.cumsum(pc.count_substring(records, b",").to_numpy())
    full = np.flatnonzero(np.diff(names // NAMES, prepend=0))
    ends = sorted({*range(0, len(records), PIECE), *full.tolist(), *(full + 1).tolist(), len(records)})
    return (records.slice(at, end - at) for at, end in pairwise(ends))


def joined(records: pa.Array) -> pa.Buffer:
    """Write records, bytes or texts, one after the other, with a line break between them."""
    together = pa.ListArray.from_arrays(pa.array([0, len(records)], pa.int32()), records)
    return pc.binary_join(together, pa.scalar("\n", records.type))[0].as_buffer()


def _table(text: pa.Buffer, count: int, schema: pa.Schema, unexpected: str) -> pa.Table:
    how = pj.ReadOptions(use_threads=False, block_size=max(text.size + 1, 64))
    parsing = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected)
    found = pj.read_json(pa.BufferReader(text), how, parsing)
    if found.num_rows != count:
        raise pa.ArrowInvalid("not one object a record")
    return found


def _beyond(records: pa.Array, schema: pa.Schema, bounds: Bounds) -> Counter[str]:
    """Count the records with a value, by each member that the schema does not name."""
    unknown = Counter[str]()
    for some in _pieces(records):
        unknown.update(_beyond_of_few(some, schema, bounds))
    return unknown


def _beyond_of_few(records: pa.Array, schema: pa.Schema, bounds: Bounds) -> Counter[str]:
    if len(records) < FEW:
        return _beyond_one_by_one(records, schema, bounds)
    try:
        found = _table(joined(records), len(records), schema, "infer")
    except pa.ArrowInvalid:  # such as of one name with values of several types
        return _beyond_one_by_one(records, schema, bounds)
    counts = {
        name: len(found) - found[name].null_count for name in found.column_names if name not in schema.names
    }
    return Counter({name: records for name, records in counts.items() if records})


def _beyond_one_by_one(records: pa.Array, schema: pa.Schema, bounds: Bounds) -> Counter[str]:
    counts, names = Counter[str](), frozenset(schema.names)
    try:
        for record in records.to_pylist():
            members = members_of(record, bounds)
            counts.update({name for name, value in members if value is not None and name not in names})
    except Misfit as misfit:
        raise pa.ArrowInvalid(str(misfit)) from misfit
    return counts


def _require_usual(records: pa.Array, bounds: Bounds) -> None:
    """Raise _Unfit for records whose undeclared members may be no JSON or too deep, which Arrow's parser takes there."""
    too_deep = pc.greater(_brackets(records), bounds.record_depth)
    odd = pc.or_(too_deep, pc.match_substring_regex(records, _CONSTANT))
    if odd.true_count:
        raise _Unfit(odd)


def _read_as(kind: pa.DataType) -> pa.DataType | None:
    """Return what Arrow's parser is to read for a type, moments as texts; None where it can't, or reads otherwise."""
    if is_moment(kind):
        return pa.string()
    if pa.types.is_list(kind):
        element = _read_as(kind.value_type)
        return element and pa.list_(pa.field(kind.value_field.name, element))
    if pa.types.is_struct(kind):
        fields = [(field.name, _read_as(field.type)) for field in kind]
        return None if any(inner is None for _, inner in fields) else pa.struct(fields)
    number = pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)
    return kind if number or kind in (pa.string(), pa.bool_()) else None


def _exact(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Flags | None]:
    """Make the type of what was parsed; tell which values are none, or raise ArrowInvalid where they are within others.

    Arrow's parser makes a number that is too large infinite, takes `-NaN` and `Inf`, and of a decimal it looks at the
    digits that are written, not at those that the type's scale adds.
    """
    if is_moment(kind):
        return moments(column, kind)
    if column.type != kind:
        column = column.cast(kind)
    for leaf in _leaves(column):
        odd = None
        if pa.types.is_decimal128(leaf.type):
            leaf.validate(full=True)
        elif pa.types.is_floating(leaf.type):
            odd = pc.invert(pc.is_finite(leaf))
        elif is_moment(leaf.type):
            odd = beyond_years(leaf)
        if odd is not None and odd.true_count:
            if leaf is column:
                return column, flags(odd)
            raise pa.ArrowInvalid("within")
    return column, None


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of values that are no object and no array."""
    if pa.types.is_struct(column.type):
        for inner in column.flatten():
            yield from _leaves(inner)
    elif pa.types.is_list(column.type):
        yield from _leaves(column.flatten())
    else:
        yield column
