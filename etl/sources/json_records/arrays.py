"""Reads files that are one JSON array of records each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from etl.common.wording import pluralize
from etl.sources.counts import Drift
from etl.sources.json_records.blocks import JsonReader
from etl.sources.json_records.lines import BLANK, TEXT
from etl.sources.raw.lines import Lines
from etl.sources.raw.parts import Part
from etl.sources.unreadable import FileUnfit

RECORDS = 10_000  # of a file, at a time
SHORT = 4096  # characters of an element that is made into values to find its end
_BLANKS = re.compile(f"[{BLANK}]*")
_DECODER = json.JSONDecoder()
_PLAIN = re.compile(rf'{TEXT}|[^\s"\[\]{{}},]++', re.DOTALL)
_TO_BRACKET = re.compile(rf'(?:[^"\[\]{{}}]++|{TEXT})*+([\[\]{{}}])', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JsonArrays:
    """Reads whole files as rows of the reader, beside where they are from."""

    reader: JsonReader
    lines: Lines  # where damage is tolerated, what is before a fault in the array is read

    def rows(self, batches: Iterator[pa.RecordBatch], drift: Drift | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files of one task. Raises FileUnfit for one that is no whole array."""
        for part in Part.listed(batches):
            try:
                text = self.lines.whole(part).decode("utf-8", "surrogateescape")
                for records in _many(elements(text)):
                    yield part.tell(self.reader.read(records, drift))
            except FileUnfit as unfit:
                if not self.lines.tolerant:
                    raise unfit.of(part.uri) from unfit


def elements(text: str) -> Iterator[str]:
    """Yield the text of each element of an array; none of a text of blanks. Raises FileUnfit where it is broken."""
    at = _after_blanks(text, 0)
    if at == len(text):
        return
    if text[at] != "[":
        raise FileUnfit(
            f"it is no JSON array: it begins with {text[at]!r}, wanted '['; declare format=\"json\" for lines"
        )
    at, number = _after_blanks(text, at + 1), 0
    closed = text.startswith("]", at)
    while not closed:
        end = _end(text, at, number)
        yield text[at:end]
        number += 1
        at = _after_blanks(text, end)
        closed = text.startswith("]", at)
        if not closed and not text.startswith(",", at):
            raise _broken(text, at, number)
        at = at if closed else _after_blanks(text, at + 1)
    if _after_blanks(text, at + 1) < len(text):
        raise FileUnfit(f"there is more after its JSON array, from character {at + 2} on")


def _end(text: str, at: int, number: int) -> int:
    """Return where an element ends. One that is no JSON, too long or too deep is for the reader of records to hold."""
    begun = text[at : at + SHORT]
    try:
        _, end = _DECODER.raw_decode(begun)
        if end < SHORT - len("e+"):  # else a number may go on
            return at + end
    except (json.JSONDecodeError, RecursionError):
        pass
    return _end_by_brackets(text, at, number)


def _end_by_brackets(text: str, at: int, number: int) -> int:
    """Return where an element ends by its brackets alone: no value of it takes memory, and no level a frame."""
    if (plain := _PLAIN.match(text, at)) is not None:
        return plain.end()
    end, level = at, 0
    while text.startswith(("{", "["), at) and (found := _TO_BRACKET.match(text, end)) is not None:
        end = found.end()
        level += 1 if found[1] in "[{" else -1
        if level == 0:
            return end
    raise _broken(text, at, number)


def _broken(text: str, at: int, number: int) -> FileUnfit:
    what = "ends early" if at == len(text) else f"is broken at character {at + 1:,}"
    return FileUnfit(f"its JSON array {what}, after {pluralize(number, 'element')}")


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None, "matches any text"
    return found.end()


def _many(records: Iterator[str]) -> Iterator[pa.Array]:
    """Yield the records some at a time; those before a fault come before its error."""
    some: list[bytes] = []
    try:
        for record in records:
            some.append(record.encode("utf-8", "surrogateescape"))
            if len(some) == RECORDS:
                yield pa.array(some, pa.binary())
                some = []
    except FileUnfit:
        yield pa.array(some, pa.binary())
        raise
    yield pa.array(some, pa.binary())
