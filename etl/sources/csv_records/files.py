"""Reads CSV files by each one's own header."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from etl.sources.counts import Drift
from etl.sources.csv_records.blocks import CsvReader
from etl.sources.csv_records.dialect import Dialect
from etl.sources.csv_records.header import HEADER_BYTES, Layout, header_values
from etl.sources.raw.lines import Lines
from etl.sources.raw.parts import Part
from etl.sources.unreadable import FileUnfit

ROWS = 10_000  # of a file that is read as a whole, at a time


@dataclass(frozen=True, kw_only=True)
class CsvFiles:
    """Reads parts of files, or whole ones where the dialect says so, as rows beside where they are from."""

    reader: CsvReader
    header: bool
    lines: Lines
    _layouts: dict[str, Layout | None] = field(default_factory=dict)  # by URI; None: nothing is read of it

    def rows(self, batches: Iterator[pa.RecordBatch], drift: Drift | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all parts of one task. Raises FileUnfit for a file that does not fit the schema."""
        for part in Part.listed(batches):
            begins = part.start == 0
            try:
                for records in self._records(part):
                    yield from self._read(records, part, drift, begins=begins)
                    begins = begins and not len(records)
            except FileUnfit as unfit:
                if not self.lines.tolerant:
                    raise unfit.of(part.uri) from unfit
                self._layouts[part.uri] = None

    def _read(
        self, records: pa.Array, part: Part, drift: Drift | None, *, begins: bool
    ) -> Iterator[pa.RecordBatch]:
        if not len(records):
            return
        layout = self._layout(part.uri, records if begins else None)
        if layout is None:
            return
        if begins and self.header:
            records = records.slice(1)
        yield part.tell(self.reader.read(records, layout, drift))

    def _layout(self, uri: str, begun: pa.Array | None) -> Layout | None:
        """Return the layout of a file, of whose beginning records may be at hand."""
        if uri not in self._layouts:
            self._layouts[uri] = self._found_layout(uri, begun)
        return self._layouts[uri]

    def _found_layout(self, uri: str, begun: pa.Array | None) -> Layout:
        names, dialect = self.reader.names, self.reader.dialect
        if not self.header:
            return Layout.of_schema(names)
        if begun is None:
            begun = self._begun(uri)
        encoding = "utf-8" if dialect.whole_files else dialect.encoding
        header = header_values(begun[0].as_py().decode(encoding, "replace"), dialect)
        return Layout.of_header(header, names)

    def _begun(self, uri: str) -> pa.Array:
        """Return the first records of a file that is read in parts."""
        lines = replace(self.lines, longest=HEADER_BYTES)
        for records in lines.of(Part(uri, 0, HEADER_BYTES)):
            if len(records := _without_blank(records, self.reader.dialect)):
                return records
        raise FileUnfit(f"its first {HEADER_BYTES:,} bytes are blank, so it has no header")

    def _records(self, part: Part) -> Iterator[pa.Array]:
        """Yield records, a number at a time, without lines of nothing."""
        dialect = self.reader.dialect
        if not dialect.whole_files:
            yield from (_without_blank(lines, dialect) for lines in self.lines.of(part))
            return
        some: list[bytes] = []
        text = _decoded(self.lines.whole(part), dialect)
        for record in filter(dialect.is_record, dialect.records(text)):
            some.append(record.encode("utf-8", _undecodable(dialect)))
            if len(some) == ROWS:
                yield pa.array(some, pa.binary())
                some = []
        yield pa.array(some, pa.binary())


def _decoded(content: bytes, dialect: Dialect) -> str:
    """Decode a whole file; of bytes that are none of its encoding, the records are held later."""
    try:
        return dialect.decoded(content, _undecodable(dialect))
    except UnicodeDecodeError as error:
        raise FileUnfit(
            f"it is no {dialect.encoding.upper()}: {error.reason} at byte {error.start + 1}"
        ) from error


def _undecodable(dialect: Dialect) -> str:
    """Name how what is none of the encoding is kept, for its record to be held as it is."""
    return "surrogatepass" if dialect.encoding.startswith("utf-16") else "surrogateescape"


def _without_blank(lines: pa.Array, dialect: Dialect) -> pa.Array:
    blank = pc.match_substring_regex(lines, dialect.blank)
    return lines.filter(pc.invert(blank)) if pc.any(blank).as_py() else lines
