"""Reads the lines of parts of files, and files as a whole."""

from __future__ import annotations

import re
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
BEYOND = 1 << 16  # bytes that are asked for first of a line that goes on beyond its part, then twice as many
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
    def splittable(self) -> bool:
        """Tell whether a file can be read in parts: it shows where a line begins wherever one looks."""
        return self.separator is None or len(self.separator) == 1

    @property
    def _most(self) -> int:
        """Return how many bytes of a line are kept: it shows that one is too long, if it begins with a mark as well."""
        return len(_BOM) + max(self.longest, BLOCK) + 1

    def of(self, part: Part) -> Iterator[pa.Array]:
        """Yield the lines (binary) that begin within a part, some at a time, without their ends.

        Raises FileUnfit for a file that is damaged, FileUnread for one that can't be read now.
        """
        first = part.start == 0
        for block in filter(None, self._blocks(part)):
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
        """Yield whole lines, many at a time, each with its end but the last one of a file, or one that is too long."""
        begun, length = list[bytes](), 0  # of a line that goes on
        try:
            for ended, rest in self._parted(_bytes(part, self.separator or _LINE_FEED)):
                if ended:
                    if length == self._most:  # what follows of this line is left out
                        yield b"".join(begun)
                        begun, ended = [], self._after_first_end(ended)
                    yield b"".join([*begun, ended])
                    begun, length = [], 0
                begun.append(rest[: self._most - length])
                length += len(begun[-1])
        except FileUnfit:
            if not self.tolerant:
                raise
            return
        if last := b"".join(begun):
            yield last

    def _parted(self, pieces: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Part BLOCK or more at a time at the last line's end; of a damaged file also what comes before the damage.

        What may be the beginning of a line's end comes with what follows, so that each end is seen.
        """
        some, length = list[bytes](), 0
        try:
            for piece in pieces:
                some.append(piece)
                length += len(piece)
                if length >= BLOCK:
                    ended, rest = self._at_last_end(b"".join(some))
                    keep = self._end_begun(rest)
                    yield ended, rest.removesuffix(keep)
                    some, length = [keep], len(keep)
        except FileUnfit:
            yield self._at_last_end(b"".join(some))
            raise
        yield self._at_last_end(b"".join(some))

    def _at_last_end(self, block: bytes) -> tuple[bytes, bytes]:
        """Part a block, which goes on, after the last line that ends in it."""
        if self.separator is None:  # a carriage return at the end may have its line feed yet to come
            cut = max(block.rfind(_LINE_FEED), block.rfind(b"\r", 0, -1)) + 1
        elif self.splittable:
            cut = block.rfind(self.separator) + 1
        else:  # from the left, for ends such as "||" may overlap
            cut = len(block) - len(block.split(self.separator)[-1])
        return block[:cut], block[cut:]

    def _after_first_end(self, block: bytes) -> bytes:
        return re.split(re.escape(self.separator or b"") or rb"\r\n|\r|\n", block, maxsplit=1)[-1]

    def _end_begun(self, rest: bytes) -> bytes:
        """Return what is at the end of a line that may be the beginning of its end."""
        end = self.separator or b"\r\n"
        return next((end[:most] for most in range(len(end) - 1, 0, -1) if rest.endswith(end[:most])), b"")

    def _split(self, block: bytes) -> pa.Array:
        end = self.separator or _LINE_FEED
        if self.separator is None and b"\r" in block:
            block = block.replace(b"\r\n", _LINE_FEED).replace(b"\r", _LINE_FEED)
        lines = pc.split_pattern(pa.array([block], pa.large_binary()), pattern=end).values
        return lines if lines[-1].as_buffer().size else lines[:-1]  # nothing comes after the last end


def _bytes(part: Part, end: bytes) -> Iterator[bytes]:
    """Yield the bytes of all lines that begin within a part, of a packed file unpacked."""
    with _opened(part.uri) as file:
        unpack = unpacker(part.uri)
        for some in _of_part(file, part, end) if unpack is None else unpack(file):
            for begin in range(0, len(some), BLOCK):
                yield some[begin : begin + BLOCK]


def _of_part(file: Any, part: Part, end: bytes) -> Iterator[bytes]:
    """Yield the lines that begin in a part: after the first end of a line from the byte before it on.

    Carriage returns beyond the part, up to such an end, end lines of it too.
    """
    at = max(part.start - 1, 0)
    file.seek(at)
    begins, some = part.start == 0, b""  # whether a line that begins in the part was met
    while at < part.end and (some := file.read(min(REQUEST, part.end - at))):
        at += len(some)
        if not begins:
            _, begins, some = some.partition(end)
        yield some
    if begins and some and not some.endswith(end):  # the last line goes on beyond the part
        size = BEYOND
        while beyond := file.read(size):
            line, ends, _ = beyond.partition(end)
            yield line + ends
            if ends:
                break
            size = min(2 * size, REQUEST)


@contextmanager
def _opened(uri: str) -> Iterator[Any]:
    store, path = filesystem(to_path(uri))
    try:
        with store.open_input_file(path) as file:
            yield file
    except OSError as error:
        raise FileUnread.of(uri, error) from error
