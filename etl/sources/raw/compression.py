"""Opens files that are packed as their names say: by gzip, bzip2, zstd, LZ4, Snappy or zlib."""

from __future__ import annotations

import bz2
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from etl.common.wording import pluralize
from etl.sources.unreadable import FileUnfit

CHUNK = 1 << 16  # bytes that are unpacked at a time
MADE = 1 << 16  # bytes that are made of them at a time; a million times as many may come of them in all
_LZ4_FRAME = re.compile(  # the first bytes of one, or of one to skip, by the LZ4 frame format
    rb"(?:\x04\x22|[\x50-\x5f]\x2a)\x4d\x18"
)
_LZ4_LEGACY = b"\x02\x21\x4c\x18"
_LONGEST_BLOCK = 1 << 28  # bytes; Hadoop writes blocks of some 256 kB

Unpack = Callable[[Any], Iterator[bytes]]  # what a file has in it, some bytes at a time


def unpacker(name: str) -> Unpack | None:
    """Return what unpacks a file of this name; None for one that is not packed."""
    return next((unpack for suffix, unpack in UNPACKERS.items() if name.endswith(suffix)), None)


def _inflated(file: Any) -> Iterator[bytes]:
    """Unpack gzip or zlib data, which begins as what it is."""
    return _members(file, lambda: zlib.decompressobj(zlib.MAX_WBITS | 32), zlib.error)


def _bunzipped(file: Any) -> Iterator[bytes]:
    return _members(file, bz2.BZ2Decompressor, OSError)


def _members(file: Any, new: Callable[[], Any], fault: type[Exception]) -> Iterator[bytes]:
    """Unpack one whole member after the other. Raises FileUnfit where one is broken, or ends too early."""
    member, packed, unpacked = new(), 0, 0
    while some := file.read(CHUNK):
        packed += len(some)
        made = b""
        while some or len(made) == MADE:  # else there is no more to come of these bytes
            if member.eof:
                if not (some := some.lstrip(b"\0")):  # padding
                    break
                member = new()
            with _told(fault, packed):
                made = member.decompress(some, MADE)
            unpacked += len(made)
            yield made
            some = member.unused_data if member.eof else getattr(member, "unconsumed_tail", b"")
    if not member.eof:
        raise FileUnfit(
            f"it ends early: its compressed data is cut off after {pluralize(packed, 'byte')} ({unpacked:,} unpacked)"
        )


def _unpacked_by(codec: str) -> Unpack:
    """Return what unpacks the frames of a codec that Arrow knows."""

    def unpack(file: Any) -> Iterator[bytes]:
        with pa.CompressedInputStream(file, codec) as stream:
            while True:
                try:
                    some = stream.read(CHUNK)
                except OSError as error:
                    if error.errno is not None or "AWS Error" in str(error):  # of the storage
                        raise
                    raise FileUnfit(f"its compressed data is broken, or ends early: {error}") from error
                if not some:
                    return
                yield some

    return unpack


def _lz4(file: Any) -> Iterator[bytes]:
    """Unpack frames, as the tool `lz4` writes them, or blocks of Hadoop."""
    first = file.read(4)
    if first == _LZ4_LEGACY:
        raise FileUnfit(
            "it is an LZ4 file of the legacy format, as lz4 -l writes it: pack it with lz4, without -l"
        )
    framed = _LZ4_FRAME.match(first)
    file.seek(0)
    return _unpacked_by("lz4")(file) if framed else _HADOOP_LZ4(file)


def _hadoop_blocks(codec: str, length: Callable[[bytes], int]) -> Unpack:
    """Return what unpacks blocks as Hadoop writes them: the length of what is packed, then pieces after their lengths.

    `length` tells how many bytes come of a piece: a codec that is asked for more fills up what it gives.
    """

    def unpack(file: Any) -> Iterator[bytes]:
        while (left := _number(file, ends=True)) is not None:
            while left > 0:
                size = _number(file) or 0
                packed = file.read(size)
                if len(packed) < size:
                    raise FileUnfit(
                        f"it ends early: {pluralize(size - len(packed), 'byte')} before a block's end"
                    )
                with _told((IndexError, ValueError, OSError, pa.ArrowException), file.tell()):
                    if (made := length(packed)) > left:
                        raise ValueError("a piece is longer than its block")
                    piece = pa.Codec(codec).decompress(packed, decompressed_size=made, asbytes=True)
                left -= len(piece)
                yield piece

    return unpack


def _snappy_length(packed: bytes) -> int:
    """Read the number that a piece begins with, by seven bits a byte, of which there are five at most."""
    length = at = 0
    while packed[at] & 0x80 and at < 4:
        length |= (packed[at] & 0x7F) << 7 * at
        at += 1
    return length | packed[at] << 7 * at


def _lz4_length(packed: bytes) -> int:
    """Sum up what the sequences of a piece make, by the LZ4 block format: literals, then a match."""
    length = at = 0
    while at < len(packed):
        token = packed[at]
        literals, at = _lz4_number(packed, at + 1, token >> 4)
        length, at = length + literals, at + literals
        if at < len(packed):  # the last sequence has no match
            match, at = _lz4_number(packed, at + 2, token & 0xF)
            length += match + 4
    return length


def _lz4_number(packed: bytes, at: int, number: int) -> tuple[int, int]:
    """Return a number that goes on in the next bytes where it is 15, and where they end."""
    more = 255 if number == 15 else 0
    while more == 255:
        more = packed[at]
        number, at = number + more, at + 1
    return number, at


def _number(file: Any, *, ends: bool = False) -> int | None:
    """Read a length; None at the end of a file that may end here."""
    written = file.read(4)
    if not written and ends:
        return None
    length = int.from_bytes(written, "big")
    if len(written) < 4 or length > _LONGEST_BLOCK:
        raise FileUnfit(f"its compressed data is broken, or ends early, before byte {file.tell():,}")
    return length


@contextmanager
def _told(fault: type[Exception] | tuple[type[Exception], ...], packed: int) -> Iterator[None]:
    try:
        yield
    except fault as error:
        raise FileUnfit(
            f"its compressed data is broken, within {pluralize(packed, 'byte')} of its beginning: {error}"
        ) from error


_HADOOP_LZ4 = _hadoop_blocks("lz4_raw", _lz4_length)
UNPACKERS: dict[str, Unpack] = {  # by what names end with
    ".gz": _inflated,
    ".deflate": _inflated,
    ".bz2": _bunzipped,
    ".zst": _unpacked_by("zstd"),
    ".lz4": _lz4,
    ".snappy": _hadoop_blocks("snappy", _snappy_length),
}
