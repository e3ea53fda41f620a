"""Reads the lines of parts of files, and files as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from etl.common.paths import filesystem, to_path
from etl.sources.raw.compression import unpacker
from etl.sources.raw.parts import Part
from etl.sources.unreadable import FileUnfit, FileUnread

REQUEST = 8 << 20  # bytes that are asked of a storage at a time
BLOCK = 1 << 20  # bytes that are taken apart at a time: what fits a core's cache
BEYOND = 1 << 16  # bytes at a time of a line that goes on beyond its part
LINES = 20_000  # at a time
_BOM = b"\xef\xbb\xbf"
_LINE_FEED = b"\n"


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Reads lines, which end with a line feed, a carriage return or both; or with a separator, where one is declared."""

    separator: bytes | None = None
    longest: int = 1 << 26  # bytes of a line; of a longer one the beginning is given, so that it shows
    tolerant: bool = False  # a damaged file is read up to where it is, instead of an error

    @property
    def apart(self) -> bool:
        """Tell whether a file can be read in parts: it shows where a line begins wherever one looks."""
        return self.separator is None or len(self.separator) == 1

    def of(self, part: Part) -> Iterator[pa.Array]:
        """Yield the lines (binary) that begin within a part, some at a time, without their ends.

        Raises FileUnfit for a file that is damaged, FileUnread for one that can't be read now.
        """
        first = part.start == 0
        for block in self._blocks(part):
            lines = self._split(block.removeprefix(_BOM) if first else block)
            first = False
            for at in range(0, len(lines), LINES):
                yield lines.slice(at, LINES).cast(pa.binary())

    def whole(self, part: Part) -> bytes:
        """Return all bytes of a file; where it is damaged, and that is tolerated, none.

        Raises FileUnfit for a file that is damaged, FileUnread for one that can't be read now.
        """
        try:
            return b"".join(_bytes(part, _LINE_FEED))
        except FileUnfit:
            if not self.tolerant:
                raise
            return b""

    def _blocks(self, part: Part) -> Iterator[bytes]:
        """Yield whole lines, many at a time, each with its end; the last line of a file may have none."""
        read: list[bytes] = []
        try:
            for some in _bytes(part, self.separator or _LINE_FEED):
                read.append(some)
                if self.apart and sum(map(len, read)) >= BLOCK:
                    block = b"".join(read)
                    cut = self._cut(block)
                    if cut:
                        yield block[:cut]
                    read = [block[cut:] if cut else self._beginning(block)]
        except FileUnfit:
            if not self.tolerant:
                raise
            read = [b"".join(read)]
            read = [read[0][: self._cut(read[0])]]
        if last := b"".join(read):
            yield last

    def _beginning(self, line: bytes) -> bytes:
        """Return so much of a line, which goes on, that it shows whether it is too long, a byte order mark or not."""
        kept = len(_BOM) + self.longest + 1
        # A carriage return at the end may end it.
        is_ended = self.separator is None and len(line) > kept and line.endswith(b"\r")
        return line[:kept] + b"\r" if is_ended else line[:kept]

    def _cut(self, some: bytes) -> int:
        """Return where in these bytes, which go on, the last line that ends in them is at its end; 0 where none does."""
        if self.separator is not None:
            before, end, _ = some.rpartition(self.separator)
            return len(before) + len(end)
        # A carriage return at the end may have its line feed yet to come.
        return max(some.rfind(_LINE_FEED), some.rfind(b"\r", 0, -1)) + 1

    def _split(self, block: bytes) -> pa.Array:
        end = self.separator or _LINE_FEED
        if self.separator is None and b"\r" in block:
            block = block.replace(b"\r\n", _LINE_FEED).replace(b"\r", _LINE_FEED)
        one = pa.array([block.removesuffix(end)], pa.large_binary())
        return pc.split_pattern(one, pattern=end).values


def _bytes(part: Part, end: bytes) -> Iterator[bytes]:
    """Yield the bytes of all lines that begin within a part, of a packed file unpacked."""
    with _opened(part.uri) as file:
        unpack = unpacker(part.uri)
        for some in _of_part(file, part, end) if unpack is None else unpack(file):
            for begin in range(0, len(some), BLOCK):
                yield some[begin : begin + BLOCK]


def _of_part(file: Any, part: Part, end: bytes) -> Iterator[bytes]:
    """Yield the lines that begin in a part: after the first end of a line from the byte before it on."""
    at = max(part.start - 1, 0)
    file.seek(at)
    begins, some = part.start == 0, b""  # whether a line that begins in the part was met
    while at < part.end and (some := file.read(min(REQUEST, part.end - at))):
        at += len(some)
        if not begins:
            _, begins, some = some.partition(end)
        yield some
    if begins and some and not some.endswith(end):  # the last line goes on beyond the part
        while beyond := file.read(BEYOND):
            line, ends, _ = beyond.partition(end)
            yield line + ends
            if ends:
                break


@contextmanager
def _opened(uri: str) -> Iterator[Any]:
    store, path = filesystem(to_path(uri))
    try:
        with store.open_input_file(path) as file:
            yield file
    except OSError as error:
        raise FileUnread.of(uri, error) from error
