"""Reads files of JSON Lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from etl.sources.counts import Drift
from etl.sources.json_records.blocks import JsonReader
from etl.sources.raw.lines import Lines
from etl.sources.raw.parts import Part
from etl.sources.unreadable import FileUnfit

# What BLANK has, for RE2 over bytes: there a byte order mark within brackets would be each of its three.
_BLANK_LINE = r"\A(?:[ \t\r\n]|\xef\xbb\xbf)*\z"


@dataclass(frozen=True, kw_only=True)
class JsonFiles:
    """Reads parts of files as rows of the reader, beside where they are from."""

    reader: JsonReader
    lines: Lines

    def rows(self, batches: Iterator[pa.RecordBatch], drift: Drift | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all parts of one task; `drift` counts how they drift from the schema."""
        for part in Part.listed(batches):
            try:
                for records in self.lines.of(part):
                    yield part.tell(self.reader.read(_without_blank(records), drift))
            except FileUnfit as unfit:
                raise unfit.of(part.uri) from unfit


def _without_blank(lines: pa.Array) -> pa.Array:
    """Leave out lines of nothing but blanks; one that begins as an object is none."""
    begun = pc.starts_with(lines, b"{")
    if pc.all(begun).as_py():
        return lines
    blank = pc.match_substring_regex(lines, _BLANK_LINE)
    return lines.filter(pc.invert(blank))
