"""Reads many JSON records at once: by Arrow's parser where that is sure to give what `lines` gives, else by `lines`.

Arrow's parser is about eight times as fast. It takes less than the contract of docs/reading.md, and what it takes it
takes alike; the few exceptions are looked for below, and tests compare both ways. It tells of a number of records at once
that they are good, or of one that is not: so records are parted until those that it does not take are apart.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from etl.common.record_bounds import DEFAULT, Bounds
from etl.common.record_columns import DETAIL, MALFORMED_COLUMN, UNKNOWN
from etl.sources.counts import Drift
from etl.sources.json_records.lines import members_of
from etl.sources.json_records.values import Convert, Members, Misfit, converter, text_of

Numbers = npt.NDArray[np.int64]  # of records, within one batch

FEW = 32  # records that are not worth a call of Arrow's parser
PIECE = 256  # records that are tried together once some of many are not taken
PARTINGS = 20  # how often records are parted before those that were taken must be many times as many
NAMES = 20_000  # of members that a piece may have, if it is read at once
WORTH = 20  # records for each parting: where they are fewer, one by one is faster
BESIDE = pa.schema({MALFORMED_COLUMN: pa.string(), DETAIL: pa.string()})  # columns beside the declared ones
_ROW = re.compile(r" in row (\d+)$")
_CONSTANT = "NaN|Inf"
_LONG_EXPONENT = "[eE][-+]?[0-9]{3}"
_ZONE = r"(?:Z|[-+][0-9]{2}(?::?[0-9]{2})?)"
_CLOCK = r"[0-9]{2}(?::[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?"
_ZONED = rf"[T ]{_CLOCK}{_ZONE}\z"  # the end of a day alone looks like an offset
_MOMENT = rf"\A[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ]{_CLOCK}{_ZONE}?)?\z"
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


@dataclass(frozen=True, kw_only=True)
class JsonReader:
    """Reads records into rows of one schema, each beside the text of a malformed one and what is wrong with it.

    A last column UNKNOWN of the schema takes the members that the other columns do not name.
    """

    schema: pa.Schema
    holds_unknown: bool = False  # such members make a record malformed
    bounds: Bounds = DEFAULT  # what is beyond them is malformed, too

    def read(self, records: pa.Array) -> pa.RecordBatch:
        """Read records (binary) into as many rows, in their order: the schema's columns and those of BESIDE.

        A null is a row of nulls, and not malformed.
        """
        drift = Drift()
        parts = list(self._parts(records, drift.unknown)) or [(np.arange(0), self._rows.empty_table())]
        numbers = np.concatenate([some for some, _ in parts])
        rows = pa.concat_tables(part for _, part in parts)
        if (np.diff(numbers) != 1).any():
            rows = rows.take(pa.array(np.argsort(numbers)))
        columns = [column.combine_chunks() for column in rows.columns]
        return drift.noted(pa.RecordBatch.from_arrays(columns, schema=self._rows))

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
    def _odd(self) -> str:
        """Return the pattern of records that probably have a member of another type."""
        return "|".join(_odd_members(pa.struct(self._declared)))

    def _parts(self, records: pa.Array, unknown: Counter[str]) -> Iterator[tuple[Numbers, pa.Table]]:
        """Read all records, some at a time: their numbers, and their rows; count in `unknown` what is not declared."""
        every = np.arange(len(records))
        plain = self._plain(records)
        left = [every[~plain]]
        todo, taken, partings = [every[plain]], 0, 0
        while todo:
            some = todo.pop()
            if len(some) < FEW or partings > PARTINGS + taken // WORTH:
                left.append(some)
                continue
            parsed = self._parsed(records.take(pa.array(some)), unknown)
            if isinstance(parsed, pa.Table):
                taken += len(some)
                yield some, parsed
                continue
            partings += 1
            todo += [some[part] for part in reversed(parsed.parts)]
            left.append(some[parsed.apart])
        if len(rest := np.concatenate(left)):
            yield rest, self._one_by_one(records.take(pa.array(rest)).to_pylist(), unknown)

    def _plain(self, records: pa.Array) -> npt.NDArray[np.bool_]:
        """Tell which records may be given to Arrow's parser: those that begin and end as an object does.

        It dies of a decimal with an exponent of minus a thousand millions (Arrow 26).
        """
        if self._read_as is None:
            return np.zeros(len(records), np.bool_)
        plain = pc.and_(pc.starts_with(records, b"{"), pc.ends_with(records, b"}"))
        if _has_decimals(pa.struct(self.schema)):
            plain = pc.and_not(plain, pc.match_substring_regex(records, _LONG_EXPONENT))
        return flags(plain) & self._within(records)

    def _within(self, records: pa.Array) -> npt.NDArray[np.bool_]:
        """Tell which records are sure to be within the bounds of bytes and of fields."""
        lengths = pc.binary_length(records).fill_null(0)
        within, longest = pc.less_equal(lengths, self.bounds.record_bytes), pc.max(lengths).as_py() or 0
        if longest > self.bounds.record_fields:  # each has a byte at least
            within = pc.and_(within, pc.less_equal(_most_fields(records), self.bounds.record_fields))
        return flags(within)

    def _parsed(self, records: pa.Array, unknown: Counter[str]) -> pa.Table | _Parting:
        """Read records by Arrow's parser; where it takes not all of them, tell how to part them."""
        assert self._read_as is not None
        try:
            records.cast(pa.string())  # which it does not look at
            lenient = not (self._keeps_unknown or self.holds_unknown)
            found, beyond = _parse(records, self._read_as, self.bounds, lenient=lenient)
            columns = [_cast(found[field.name].combine_chunks(), field.type) for field in self._declared]
            for column in columns:
                _require_exact(column)
        except _Unfit as unfit:
            return _Parting.without(unfit.rows)
        except pa.ArrowInvalid as error:
            if (
                len(records) > PIECE
                and self._odd
                and (odd := flags(pc.match_substring_regex(records, self._odd))).any()
            ):
                return _Parting.without(odd)
            return _Parting.by(str(error), len(records))
        unknown.update(beyond)
        others = self._rows.types[len(columns) :]
        return pa.table([*columns, *(pa.nulls(len(records), kind) for kind in others)], schema=self._rows)

    def _one_by_one(self, records: Sequence[bytes | None], unknown: Counter[str]) -> pa.Table:
        rows: list[dict[str, Any]] = []
        for record in records:
            try:
                rows.append({} if record is None else self._row(members_of(record, self.bounds), unknown))
            except Misfit as misfit:
                rows.append({MALFORMED_COLUMN: self.bounds.text(record or b""), DETAIL: str(misfit)})
        arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in self._rows]
        return pa.table(arrays, schema=self._rows)

    def _row(self, members: Members, unknown: Counter[str]) -> dict[str, Any]:
        """Convert the members of a record; raise Misfit where it is malformed."""
        beyond = Members((name, value) for name, value in members if name not in self._names)
        with_value = [name for name, value in beyond if value is not None]
        if with_value and self.holds_unknown:
            raise Misfit('not in the schema, and unknown is "hold"', with_value[0])
        row: dict[str, Any] = self._convert(members)
        if beyond and self._keeps_unknown:
            row[UNKNOWN] = text_of(beyond)
        unknown.update(set(with_value))
        return row

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._declared.names)

    @cached_property
    def _rows(self) -> pa.Schema:
        return pa.schema([*self.schema, *BESIDE])


@dataclass(frozen=True, kw_only=True)
class _Parting:
    """How to part records: those to try again, some at a time, and those to read one by one."""

    parts: Sequence[Any]
    apart: Any

    @classmethod
    def by(cls, message: str, count: int) -> _Parting:
        """Part many records into pieces, few at the one that Arrow's message names, or else in the middle."""
        named = _ROW.search(message)
        row = int(named[1]) if named else count
        if count > PIECE:
            return cls(parts=[slice(at, at + PIECE) for at in range(0, count, PIECE)], apart=slice(0))
        if row < count:
            return cls(parts=[slice(row), slice(row + 1, None)], apart=slice(row, row + 1))
        return cls(parts=[slice(count // 2), slice(count // 2, None)], apart=slice(0))

    @classmethod
    def without(cls, rows: npt.NDArray[np.bool_]) -> _Parting:
        return cls(parts=(~rows,), apart=rows)


class _Unfit(Exception):
    """Some values are not what is declared."""

    def __init__(self, rows: pa.Array) -> None:
        super().__init__()
        self.rows = flags(rows)


def _odd_members(kind: pa.DataType, name: str = "") -> Iterator[str]:
    """Yield patterns of members that are not of their type, as their first characters tell."""
    begins = next((begin for is_one, begin in _BEGINS if is_one(kind)), None)
    if begins and name.isidentifier():
        odd = rf"[^\s{begins}n]"
        if pa.types.is_signed_integer(kind):
            digits = len(str(2 ** (kind.bit_width - 1)))
            odd += rf"|-?[0-9]+[.eE]|-?[0-9]{{{digits},}}"
        yield rf'"{name}"\s*:\s*(?:{odd})'
    for inner in kind if pa.types.is_struct(kind) else ():
        yield from _odd_members(inner.type, inner.name)


def flags(mask: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask for numpy, null being false."""
    flags: npt.NDArray[np.bool_] = mask.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


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


def _parse(
    records: pa.Array, schema: pa.Schema, bounds: Bounds, *, lenient: bool
) -> tuple[pa.Table, Counter[str]]:
    """Parse records that each look whole; raise ArrowInvalid unless each is one object.

    Where `lenient` they may have members beyond the schema, which are counted by name.

    Where the lines of several would be one object, a line break would be within a text, or none would be between two
    members: neither is JSON. So as many objects as records are one a record.
    """
    text = joined(records)
    try:
        return _table(text, len(records), schema, "error"), Counter()
    except pa.ArrowInvalid as error:
        if not lenient or "unexpected field" not in str(error):
            raise
    _require_usual(records, bounds)
    found = _table(text, len(records), schema, "ignore")
    unknown = Counter[str]()
    for some in _pieces(records):
        unknown.update(_beyond(some, schema, bounds))
    return found, unknown


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
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return pa.string()
    if pa.types.is_list(kind):
        element = _read_as(kind.value_type)
        return element and pa.list_(pa.field(kind.value_field.name, element))
    if pa.types.is_struct(kind):
        fields = [(field.name, _read_as(field.type)) for field in kind]
        return None if any(inner is None for _, inner in fields) else pa.struct(fields)
    number = pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal128(kind)
    return kind if number or kind in (pa.string(), pa.bool_()) else None


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Make moments of texts. Raises ArrowInvalid, or _Unfit where it is known which rows have none."""
    if column.type == kind:
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(kind):
            raise
    unfit = pc.invert(pc.match_substring_regex(column, _MOMENT))
    if unfit.true_count:
        raise _Unfit(unfit)
    return moments(column, kind)


def moments(texts: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """Make moments of texts that each are one; those without a zone are in UTC."""
    if kind.tz is None:
        return texts.cast(kind)
    zoned = pc.match_substring_regex(texts, _ZONED)  # Arrow wants a zone in all texts, or in none
    in_utc = pc.if_else(zoned, None, texts).cast(pa.timestamp(kind.unit)).cast(kind)
    return pc.coalesce(pc.if_else(zoned, texts, None).cast(kind), in_utc)


def _require_exact(column: pa.Array) -> None:
    """Raise _Unfit, or ArrowInvalid, where Arrow's parser has taken what the contract does not.

    It makes a number that is too large infinite, takes `-NaN` and `Inf`, knows a year 0 and in UTC a year 10000, and of a
    decimal it looks at the digits that are written, not at those that the type's scale adds.
    """
    for leaf in _leaves(column):
        if pa.types.is_decimal128(leaf.type):
            leaf.validate(full=True)
        elif pa.types.is_floating(leaf.type):
            _require_none(pc.invert(pc.is_finite(leaf)), alone=leaf is column)
        elif pa.types.is_timestamp(leaf.type) or pa.types.is_date32(leaf.type):
            year = pc.year(leaf)
            _require_none(
                pc.or_(pc.less(year, dt.MINYEAR), pc.greater(year, dt.MAXYEAR)), alone=leaf is column
            )


def _require_none(odd: pa.Array, *, alone: bool) -> None:
    if not odd.true_count:
        return
    raise _Unfit(odd) if alone else pa.ArrowInvalid("within")


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of values that are no object and no array."""
    if pa.types.is_struct(column.type):
        for inner in column.flatten():
            yield from _leaves(inner)
    elif pa.types.is_list(column.type):
        yield from _leaves(column.flatten())
    else:
        yield column
