"""Finds the columns of a CSV file by the names in its header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyarrow.fs import FileSystem

from etl.common.wording import first_few, pluralize, visible
from etl.sources.csv_records.dialect import Dialect
from etl.sources.json_records.values import Misfit
from etl.sources.raw.compression import unpacker
from etl.sources.unreadable import FileUnfit

HEADER_BYTES = 1 << 20  # of a file; a longer header is refused


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a file has the values of the schema's columns."""

    width: int  # values of a record
    # of the schema's columns, in their order; None: the file has no such column
    positions: Sequence[int | None]
    unknown: Sequence[tuple[str, int]] = ()  # columns that the schema does not name, with their positions
    missing: Sequence[str] = ()  # columns of the schema that the file does not have

    @property
    def drifts(self) -> bool:
        """Tell whether the file has other columns than the schema."""
        return bool(self.unknown or self.missing)

    @classmethod
    def of_schema(cls, names: Sequence[str]) -> Layout:
        """Return the layout of files without a header: the schema's columns, in their order."""
        return cls(width=len(names), positions=range(len(names)))

    @classmethod
    def of_header(cls, header: Sequence[str], names: Sequence[str]) -> Layout:
        """Find each column by its name, whatever its case, where no other is spelled alike.

        A file may lack columns, such as one from before they were added, or have more. Raises FileUnfit for a file
        that has none of the columns, has one twice, or lacks some and has others in their place: that looks like a
        column of another name.
        """
        given = [name.strip() for name in header]
        alike = (_positions(given), _positions([name.lower() for name in given]))
        found = {name: _position(name, *alike) for name in names}
        missing = [name for name, position in found.items() if position is None]
        unknown = [
            (_called(given[at], at, times=len(alike[0][given[at]])), at)
            for at in sorted(set(range(len(given))) - set(found.values()))
        ]
        more = [
            name for name, at in unknown if given[at]
        ]  # one without a name comes of separators at the ends of lines
        if len(missing) == len(names) or (missing and more):
            has = f", has {first_few(more)} instead" if more else ""
            excel = (
                "; its first line is Excel's, and no header: take it off"
                if given[0].startswith("sep=")
                else ""
            )
            raise FileUnfit(f"{_both(given, names)}: it lacks {first_few(missing)}{has}{excel}")
        return cls(width=len(given), positions=list(found.values()), unknown=unknown, missing=missing)


def read_header(store: FileSystem, path: str, dialect: Dialect) -> list[str] | None:
    """Read the first record of a file that is packed as its name says; None where it has none, or is damaged there."""
    begun, unpack = bytearray(), unpacker(path)
    try:
        with store.open_input_file(path) as file:
            for some in [file.read(HEADER_BYTES)] if unpack is None else unpack(file):
                begun += some
                if len(begun) >= HEADER_BYTES:
                    break
    except FileUnfit:
        return None
    return first_record(bytes(begun[:HEADER_BYTES]), dialect, whole=len(begun) < HEADER_BYTES)


def first_record(begun: bytes, dialect: Dialect, *, whole: bool) -> list[str] | None:
    """Return the values of the first record; `begun` is the `whole` file, or its beginning."""
    text = dialect.decoded(begun, "replace")
    for line in dialect.records(text):
        if dialect.is_record(line):
            if len(line) == len(text) and not whole:
                raise _too_long()
            return header_values(line, dialect)
    return None


def header_values(line: str, dialect: Dialect) -> list[str]:
    """Part a header into its names. Raises FileUnfit where it is no record, or too long for one."""
    if len(line.encode()) > HEADER_BYTES:
        raise _too_long()
    try:
        return dialect.split(line)
    except Misfit as misfit:
        raise FileUnfit(f"its header is no record of CSV: {misfit}") from misfit


def _too_long() -> FileUnfit:
    return FileUnfit(f"its first line is longer than {HEADER_BYTES:,} bytes, so it is no header")


def _positions(names: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        found.setdefault(name, []).append(at)
    return found


def _position(
    name: str, exactly: Mapping[str, Sequence[int]], in_lower_case: Mapping[str, Sequence[int]]
) -> int | None:
    """Return where a column is. Raises FileUnfit if it is there twice."""
    there = exactly.get(name) or in_lower_case.get(name.lower(), ())
    if len(there) > 1:
        raise FileUnfit(f"its CSV header names {name} {pluralize(len(there), 'time')}")
    return there[0] if there else None


def _called(name: str, at: int, *, times: int) -> str:
    """Tell columns apart that have no name, or the same one, by where they are."""
    return name if name and times == 1 else f"{name} (column {at + 1})".lstrip()


def _both(given: Sequence[str], names: Sequence[str]) -> str:
    return visible(f"its CSV header is {', '.join(given)}; the schema is {', '.join(names)}")
