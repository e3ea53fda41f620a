"""Reads a sample of files that are to land: which columns it has, of which types, and what in it is malformed.

A column's type is the first that the reader of runs takes all its values as.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from etl.common.errors import SetupError
from etl.common.wording import pluralize
from etl.pipeline.ddl import ddl_name
from etl.pipeline.patterns import inferred_format
from etl.sources.csv_records import values as csv_values
from etl.sources.csv_records.dialect import Dialect
from etl.sources.csv_records.header import header_values
from etl.sources.json_records import values as json_values
from etl.sources.json_records.arrays import elements
from etl.sources.json_records.lines import BLANK, members_of
from etl.sources.json_records.values import Constant, Convert, Members, Misfit, Number
from etl.sources.parquet_types import declared_type
from etl.sources.raw.compression import unpacker
from etl.sources.unreadable import FileUnfit

MOST_RECORDS, MOST_BYTES = 50_000, 64 << 20  # of a sample, which is read no further
PIECE = 1 << 20
SEPARATORS = (",", ";", "\t", "|")
UTC = pa.timestamp("us", "UTC")
# The types that a column may have, the narrowest first; the first that takes all values is taken.
WHOLE_NUMBERS = {"bigint": pa.int64(), "decimal(38,0)": pa.decimal128(38, 0)}
FRACTIONS = {"double": pa.float64()}
TEXTS = {"date": pa.date32(), "timestamp": UTC}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")


@dataclass(frozen=True, kw_only=True)
class SampledColumn:
    """One column of the sample."""

    name: str
    type: str  # as a declaration writes it
    values: Sequence[Any]  # those that are not null, as Python has them
    doubt: str | None = None  # what a person is to look at


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a file has, as far as it was read."""

    file: Path
    format: str
    columns: Sequence[SampledColumn]
    records: int  # that are not malformed
    malformed: Sequence[str] = ()  # what is wrong with each such record
    more: bool = False  # the file goes on
    left_out: Sequence[str] = ()  # a sentence for each column that no declared type reads
    options: Mapping[str, str] = field(default_factory=dict)  # of its source


def read_sample(file: Path) -> Sample:
    """Read the beginning of a file of JSON, CSV or Parquet. Raises SetupError where it is none, or has no record."""
    kind = inferred_format(file.name)
    if kind not in ("json", "csv", "parquet"):
        raise SetupError(
            f"{file}: its name does not say what it has",
            remedy="name it .jsonl, .json, .csv or .parquet, and .gz behind that where it is packed",
        )
    try:
        sample = {"json": _of_json, "csv": _of_csv, "parquet": _of_parquet}[kind](file)
    except OSError as error:
        raise SetupError(
            f"{file} can't be read: {error.strerror or error}", remedy="name another file"
        ) from error
    except (FileUnfit, UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise SetupError(
            f"{file} can't be read: {error}", remedy="take a whole file, as it will land"
        ) from error
    if not sample.records:
        first = f": {sample.malformed[0]}" if sample.malformed else ""
        raise SetupError(f"{file} has no record that can be read{first}", remedy="take a file with some")
    return sample


def _begun(file: Path) -> tuple[bytes, bool]:
    """Read the beginning of a file, unpacked as its name says; return it, and whether there is more."""
    begun = bytearray()
    for some in _pieces(file):
        begun += some
        if len(begun) > MOST_BYTES:
            return bytes(begun[:MOST_BYTES]), True
    return bytes(begun), False


def _pieces(file: Path) -> Iterator[bytes]:
    unpack = unpacker(file.name)
    with file.open("rb") as opened:
        if unpack is None:
            yield from iter(lambda: opened.read(PIECE), b"")
        else:
            yield from unpack(opened)


def _of_json(file: Path) -> Sample:
    content, cut = _begun(file)
    is_array = content[:100].decode("utf-8", "replace").lstrip(BLANK).startswith("[")
    texts = filter(_is_record, _elements(file, content, cut) if is_array else _lines(content, cut))
    records, malformed = _read(texts, _members)
    names = dict.fromkeys(name for record in records for name in record)
    _require_distinct(names)
    columns = [_of_values(name, [record.get(name) for record in records], _json_type) for name in names]
    kind = "json-array" if is_array else "json"
    more = cut or next(texts, None) is not None
    return Sample(
        file=file, format=kind, columns=columns, records=len(records), malformed=malformed, more=more
    )


def _lines(content: bytes, cut: bool) -> Iterator[bytes]:
    lines = re.split(rb"\r\n|\n|\r", content)
    yield from lines[:-1] if cut else lines  # the last one is not whole


def _elements(file: Path, content: bytes, cut: bool) -> Iterator[bytes]:
    if cut:
        seen = f"{file} is one array of JSON, of more than {MOST_BYTES:,} bytes"
        raise SetupError(seen, remedy="take a smaller sample")
    yield from (one.encode() for one in elements(content.decode().lstrip(BLANK)))


def _members(record: bytes) -> dict[str, Any]:
    members = members_of(record)
    if doubled := [name for name, times in Counter(name for name, _ in members).items() if times > 1]:
        raise Misfit(f"found {doubled[0]} more than once")
    return dict(members)


def _is_record(text: bytes) -> bool:
    return bool(text.strip(BLANK.encode()))


def _read(texts: Iterable[Any], parse: Callable[[Any], Any]) -> tuple[list[Any], list[str]]:
    """Parse the first records; return those that are right, and what is wrong with the others."""
    right, malformed = [], []
    for text in islice(texts, MOST_RECORDS):
        try:
            right.append(parse(text))
        except Misfit as misfit:
            malformed.append(str(misfit))
    return right, malformed


def _of_values(
    name: str, values: Sequence[Any], type_of: Callable[[Sequence[Any]], tuple[str, Convert]]
) -> SampledColumn:
    given = [value for value in values if value is not None]
    if not given:
        return SampledColumn(name=name, type="string", values=(), doubt="has no value in the sample")
    kind, convert = type_of(given)
    return SampledColumn(
        name=name, type=kind, values=list(_converted(given, convert)), doubt=_doubt(kind, given)
    )


def _converted(values: Sequence[Any], convert: Convert) -> Iterator[Any]:
    """Yield what the reader makes of the values; none of what it would hold, such as half a surrogate pair."""
    for value in values:
        with suppress(Misfit):
            yield convert(value)


def _doubt(kind: str, given: Sequence[Any]) -> str | None:
    """Say what is to be looked at in a column of this type; None where nothing is."""
    if kind == "double":
        return "is the nearest double: an amount of money is a decimal(p,s)"
    if kind == "timestamp" and not all(re.search(r"Z$|[-+][0-9:]{2,5}$", str(value)[10:]) for value in given):
        return "names no zone: such a moment is in UTC"
    if kind.startswith(("struct", "array")):
        return "is nested: its members are those of the sample"
    if kind == "string" and len({type(value) for value in given}) > 1:
        return "has values of several kinds: all become texts"
    return None


def _json_type(values: Sequence[Any]) -> tuple[str, Convert]:
    """Return the type of JSON values, none of them null, and what turns them into Python's, if that is needed."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "boolean", bool
    if kinds <= {Number, Constant}:
        return _first(values, _numbers(values), json_values.converter) or ("string", json_values.text_of)
    if kinds == {str}:
        return _first(values, TEXTS, json_values.converter) or ("string", json_values.text_of)
    if kinds == {Members} and (struct := _struct(values)):
        return struct, json_values.text_of
    if kinds == {list}:
        inner = [one for value in values for one in value if one is not None]
        return f"array<{_json_type(inner)[0] if inner else 'string'}>", json_values.text_of
    return "string", json_values.text_of


def _numbers(values: Iterable[str]) -> dict[str, pa.DataType]:
    """Return the types that numbers written like these may have."""
    return {**WHOLE_NUMBERS, **FRACTIONS} if all(map(_WHOLE_NUMBER.fullmatch, values)) else FRACTIONS


def _struct(objects: Sequence[Members]) -> str | None:
    """Return the type of JSON objects; None where they have no members, or one of them has a member twice."""
    members: dict[str, list[Any]] = {}
    for one in objects:
        if max(Counter(name for name, _ in one).values(), default=0) > 1:
            return None
        for name, value in one:
            members.setdefault(name, []).extend(() if value is None else (value,))
    types = {name: _json_type(values)[0] if values else "string" for name, values in members.items()}
    return (
        f"struct<{', '.join(f'{ddl_name(name)}: {kind}' for name, kind in types.items())}>" if types else None
    )


def _first(
    values: Sequence[Any],
    kinds: Mapping[str, pa.DataType],
    converter: Callable[[pa.DataType], Convert | None],
) -> tuple[str, Convert] | None:
    """Return the first type that takes all values, with what turns them into it; None where none does."""
    for name, kind in kinds.items():
        convert = converter(kind)
        if convert is not None and _takes(convert, values):
            return name, convert
    return None


def _takes(convert: Convert, values: Sequence[Any]) -> bool:
    try:
        for value in values:
            convert(value)
    except Misfit:
        return False
    return True


def _headed(line: str) -> tuple[Dialect, list[str]]:
    """Return the dialect by whose separator a header has most names, and the names; raise FileUnfit where none reads it."""
    found: list[tuple[Dialect, list[str]]] = []
    for sep in SEPARATORS:
        with suppress(FileUnfit):
            found.append((Dialect(sep=sep), header_values(line, Dialect(sep=sep))))
    if not found:
        header_values(line, Dialect())  # says what is wrong with it
    return max(found, key=lambda one: len(one[1]))


def _of_csv(file: Path) -> Sample:
    content, cut = _begun(file)
    text = Dialect().decoded(content, "strict" if not cut else "ignore")
    lines = [line for line in Dialect().records(text) if Dialect().is_record(line)]
    if not lines:
        return Sample(file=file, format="csv", columns=(), records=0)
    dialect, names = _headed(lines[0])
    _require_distinct(names)

    def parse(line: str) -> list[str | None]:
        values = dialect.split(line, len(names))
        if len(values) != len(names):
            raise Misfit(f"found {len(values)} of {pluralize(len(names), 'field')}")
        return [value or None for value in values]

    rows = lines[1:-1] if cut else lines[1:]
    records, malformed = _read(rows, parse)
    columns = [
        _of_values(name, [record[at] for record in records], lambda given: _csv_type(given, dialect))
        for at, name in enumerate(names)
    ]
    options = {} if dialect.sep == "," else {"sep": dialect.sep}
    more = cut or len(rows) > MOST_RECORDS
    found = len(records)
    return Sample(
        file=file,
        format="csv",
        columns=columns,
        records=found,
        malformed=malformed,
        more=more,
        options=options,
    )


def _require_distinct(names: Iterable[str]) -> None:
    """Raise FileUnfit where a column has no name, or Spark would take two for the same one."""
    for name, times in Counter(map(str.lower, names)).items():
        if not name:
            raise FileUnfit("it has a column without a name")
        if times > 1:
            raise FileUnfit(f"it has {name!r} more than once, small letters and capitals being the same")


def _csv_type(values: Sequence[str], dialect: Dialect) -> tuple[str, Convert]:
    def converter(kind: pa.DataType) -> Convert | None:
        return csv_values.converter(kind, dialect)

    codes = any(map(_LEADING_ZERO.match, values))  # whose zeros a number would lose
    kinds = {"boolean": pa.bool_(), **({} if codes else _numbers(values)), **TEXTS}
    return _first(values, kinds, converter) or ("string", json_values.text_of)


def _of_parquet(file: Path) -> Sample:
    parquet = pq.ParquetFile(file)
    _require_distinct(parquet.schema_arrow.names)
    batches: list[pa.RecordBatch] = []
    for batch in parquet.iter_batches(batch_size=10_000):
        batches.append(batch)
        if sum(one.num_rows for one in batches) >= MOST_RECORDS:
            break
    table = pa.Table.from_batches(batches, parquet.schema_arrow)
    types = {one.name: declared_type(one.type) for one in table.schema}
    return Sample(
        file=file,
        format="parquet",
        columns=[
            _of_column(table.schema.field(name), table[name], kind) for name, kind in types.items() if kind
        ],
        records=table.num_rows,
        more=parquet.metadata.num_rows > table.num_rows,
        left_out=[
            f"{name}: it is {table.schema.field(name).type}, which no declared type reads: it is left out"
            for name, kind in types.items()
            if not kind
        ],
    )


def _of_column(field_: pa.Field, column: pa.ChunkedArray, kind: str) -> SampledColumn:
    plain = not pa.types.is_nested(field_.type) and kind != "binary" and not pa.types.is_temporal(field_.type)
    values = column.drop_null().to_pylist() if plain else [None] * (len(column) - column.null_count)
    doubt = None if len(values) else "has no value in the sample"
    return SampledColumn(name=field_.name, type=kind, values=values, doubt=doubt)
