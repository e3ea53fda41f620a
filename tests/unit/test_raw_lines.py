"""Each line of a file is read once, whatever parts it is read in, and packed as its name says."""

from __future__ import annotations

import bz2
import gzip
import io
import random
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from etl.sources.raw import compression
from etl.sources.raw import lines as raw
from etl.sources.raw.lines import Lines
from etl.sources.raw.parts import Part
from etl.sources.unreadable import FileUnfit, FileUnread
from tests.support.parts import Land


@pytest.fixture
def land(tmp_path: Path) -> Land:
    return Land(tmp_path)


def lines_of(*parts: pa.RecordBatch, separator: bytes | None = None, tolerant: bool = False) -> list[bytes]:
    read = Lines(separator=separator, tolerant=tolerant)
    return [line for part in Part.listed(iter(parts)) for some in read.of(part) for line in some.to_pylist()]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n\na\n\n", [b"", b"", b"a", b""]),
        (b"a\r\nb\rc\n\rd\r", [b"a", b"b", b"c", b"", b"d"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", [b"a", b"\xef\xbb\xbfb"]),
        (
            b"a\x0b\x0c\x1c\xc2\x85\xe2\x80\xa8b\x00\n\xff",
            [b"a\x0b\x0c\x1c\xc2\x85\xe2\x80\xa8b\x00", b"\xff"],
        ),
        (b"\n", [b""]),
        (b"\xef\xbb\xbf", []),
    ],
)
def test_lines_end_with_a_line_feed_a_carriage_return_or_both(
    land: Land, content: bytes, lines: list[bytes]
) -> None:
    assert lines_of(land(content)) == lines


def test_a_separator_that_is_declared_is_the_only_one(land: Land) -> None:
    assert lines_of(land(b"a\r\n|b||c|"), separator=b"|") == [b"a\r\n", b"b", b"", b"c"]
    assert lines_of(land(b"a|b||c||"), separator=b"||") == [b"a|b", b"c"]
    assert lines_of(land(b"a|||b|||"), separator=b"||") == [b"a", b"|b", b"|"], "from the left"
    assert lines_of(land("a¦b¦".encode()), separator="¦".encode()) == [b"a", b"b"]


@pytest.mark.parametrize("separator", [None, b"\n", b"|", b"\r\n", b"||", b"|a|"])
@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)])
def test_every_line_is_read_once_in_whatever_parts(
    land: Land,
    monkeypatch: pytest.MonkeyPatch,
    separator: bytes | None,
    suffix: str,
    pack: Callable[[bytes], bytes],
) -> None:
    dice = random.Random(11)
    for number in range(200):
        size = dice.randrange(1, 60)
        content = bytes(dice.choice(dice.choice([b"ab\n\n\r|", b"a\r\n", b"a|"])) for _ in range(size))
        expected = content.split(separator) if separator else content.splitlines()
        if separator and not expected[-1]:
            expected.pop()
        for name in ("REQUEST", "BLOCK", "BEYOND", "LINES"):
            monkeypatch.setattr(raw, name, dice.randrange(1, 9))
        monkeypatch.setattr(compression, "CHUNK", dice.randrange(1, 40))
        monkeypatch.setattr(compression, "MADE", dice.randrange(1, 9))
        longest = dice.choice([99, dice.randrange(1, 20)])
        read = Lines(separator=separator, longest=longest)
        cuts = sorted(dice.sample(range(1, size), dice.randrange(min(size, 6)))) if size > 1 else []
        data = b"".join(pack(content[at : at + 20]) for at in range(0, size, 20))
        parts = land(data, cuts=cuts if read.splittable and not suffix else [], suffix=suffix)
        found = [
            line for part in Part.listed(iter([parts])) for some in read.of(part) for line in some.to_pylist()
        ]
        seen = (number, content, cuts)
        assert len(found) == len(expected), seen
        for line, whole in zip(found, expected, strict=True):
            assert line == whole or (len(line) > longest and whole.startswith(line)), seen


def test_a_line_may_be_longer_than_what_is_read_at_a_time(land: Land) -> None:
    long = b"x" * (3 * raw.REQUEST)
    parts = land(b"a\n" + long + b"\nb\n", cuts=[raw.REQUEST, 2 * raw.REQUEST])
    assert lines_of(parts) == [b"a", long, b"b"]


def test_of_a_line_that_is_too_long_the_beginning_is_given(land: Land) -> None:
    content = b"a\n" + random.Random(2).randbytes(5 * raw.BLOCK // 2).hex().encode() + b"\nb\n"
    read = Lines(longest=raw.BLOCK)
    for parts in (
        land(content),
        land(content, cuts=[raw.BLOCK, 2 * raw.BLOCK]),
        land(gzip.compress(content, 1), suffix=".gz"),
    ):
        first, long, last = [
            line for part in Part.listed(iter([parts])) for some in read.of(part) for line in some.to_pylist()
        ]
        assert (first, last) == (b"a", b"b") and content.startswith(b"a\n" + long)
        assert raw.BLOCK < len(long) <= raw.BLOCK + 4, "one more, and a mark"


def test_lines_after_a_too_long_one_are_read_wherever_its_part_ends(
    land: Land, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUEST", "BLOCK", "BEYOND"):
        monkeypatch.setattr(raw, name, 4)
    content = b"a\n" + b"x" * 40 + b"\rb\rc\n" + b"y" * 40 + b"\rd"
    for step in range(1, len(content)):
        parts = land(content, cuts=range(step, len(content), step))
        read = Lines(longest=5)
        lines = [
            line for part in Part.listed(iter([parts])) for some in read.of(part) for line in some.to_pylist()
        ]
        assert [line[:6] for line in lines] == [b"a", b"xxxxxx", b"b", b"c", b"yyyyyy", b"d"], step


def test_what_a_line_and_a_file_of_many_members_take_does_not_grow_by_the_square(land: Land) -> None:
    """A line is not joined again with each piece; nor are pieces counted again."""
    content = b"x" * (20 << 20)
    many = b"".join(gzip.compress(b"%d\n" % number, 1) for number in range(4_000))
    begun = time.process_time()
    assert [len(line) for line in lines_of(land(content, cuts=[1 << 20]))] == [20 << 20]
    assert lines_of(land(many, suffix=".gz")) == [b"%d" % number for number in range(4_000)]
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_much_that_comes_of_little_is_made_bit_by_bit(land: Land, pack: Callable[[bytes], bytes]) -> None:
    file = io.BytesIO(pack(bytes(20 << 20)))
    unpack = compression.unpacker(".gz" if pack is gzip.compress else ".bz2")
    assert unpack is not None
    sizes = [len(some) for some in unpack(file)]
    assert sum(sizes) == 20 << 20 and max(sizes) == compression.MADE


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff\x0f", b"\xff" * 20, b"\x0b"])
def test_a_piece_that_says_it_is_longer_than_its_block_is_broken(land: Land, length: bytes) -> None:
    piece = length + bytes(9)
    content = (10).to_bytes(4, "big") + len(piece).to_bytes(4, "big") + piece
    with pytest.raises(FileUnfit, match=r"is broken, within .* a piece is longer than its block"):
        lines_of(land(content, suffix=".snappy"))


def test_lz4_may_begin_with_a_frame_to_skip(land: Land) -> None:
    skipped = b"\x5a\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    assert lines_of(land(skipped + framed("lz4")(b"a\nb"), suffix=".lz4")) == [b"a", b"b"]


def test_lz4_of_the_legacy_format_is_told(land: Land) -> None:
    content = bytes.fromhex("02214c1805000000") + b"@a\nb\n"  # of `lz4 -l`
    with pytest.raises(FileUnfit, match="legacy format, as lz4 -l writes it"):
        lines_of(land(content, suffix=".lz4"))


def snappy(content: bytes) -> bytes:
    return blocks(content, lambda piece: pa.Codec("snappy").compress(piece, asbytes=True))


def hadoop_lz4(content: bytes) -> bytes:
    return blocks(content, lambda piece: pa.Codec("lz4_raw").compress(piece, asbytes=True))


def blocks(
    content: bytes, compress: Callable[[bytes], bytes], *, block: int = 50_000, piece: int = 20_000
) -> bytes:
    """Write blocks of several pieces, as Hadoop does."""
    made = b""
    for at in range(0, len(content), block):
        some = content[at : at + block]
        made += len(some).to_bytes(4, "big")
        for begin in range(0, len(some), piece):
            packed = compress(some[begin : begin + piece])
            made += len(packed).to_bytes(4, "big") + packed
    return made


def framed(codec: str) -> Callable[[bytes], bytes]:
    def pack(content: bytes) -> bytes:
        made = pa.BufferOutputStream()
        with pa.CompressedOutputStream(made, codec) as stream:
            stream.write(content)
        return made.getvalue().to_pybytes()

    return pack


PACKED: Sequence[tuple[str, Callable[[bytes], bytes]]] = [
    (".gz", gzip.compress),
    (".gz", lambda content: gzip.compress(content[:999]) + gzip.compress(content[999:]) + bytes(600)),
    (".deflate", zlib.compress),
    (".bz2", bz2.compress),
    (".bz2", lambda content: bz2.compress(content[:999]) + bz2.compress(content[999:])),
    (".zst", framed("zstd")),
    (".lz4", framed("lz4")),
    (".lz4", hadoop_lz4),
    (".snappy", snappy),
]
CHECKED = (".gz", ".deflate", ".bz2")  # have a checksum in whatever was written them


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
def test_a_packed_file_is_read_to_its_end_or_told(
    land: Land, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    dice = random.Random(5)
    expected = [b"%d %s" % (number, dice.randbytes(20).hex().encode()) for number in range(9_000)]
    whole = pack(b"\n".join(expected))
    assert lines_of(land(whole, suffix=suffix)) == expected
    torn = land(whole[: len(whole) * 2 // 3], suffix=suffix)
    with pytest.raises(FileUnfit, match=r"ends early|broken"):
        lines_of(torn)
    found = lines_of(torn, tolerant=True)
    assert len(found) < 9_000 and found == expected[: len(found)], "whole lines alone"
    assert len(found) > 4_000 or suffix == ".bz2", "which has blocks of 900 kB"
    with pytest.raises(FileUnfit):
        lines_of(land(b"none of it", suffix=suffix))


def test_what_comes_before_a_wrong_checksum_can_be_read(land: Land) -> None:
    expected = [b"%d" % number for number in range(20_000)]
    wrong = bytearray(gzip.compress(b"\n".join(expected)))
    wrong[-8] ^= 1
    found = lines_of(land(bytes(wrong), suffix=".gz"), tolerant=True)
    assert len(found) > 8_000 and found == expected[: len(found)]


@pytest.mark.parametrize(("suffix", "pack"), [(suffix, pack) for suffix, pack in PACKED if suffix in CHECKED])
def test_a_packed_file_with_a_checksum_is_told_where_it_is_broken(
    land: Land, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    broken = bytearray(pack(random.Random(5).randbytes(9_000)))
    broken[4_000:4_040] = bytes(40)
    with pytest.raises(FileUnfit, match="its compressed data is broken"):
        lines_of(land(bytes(broken), suffix=suffix))


def test_a_file_that_is_not_there_or_may_not_be_read_is_no_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileUnread, match=r"^FileNotFoundError: .*\nfile: file:///"):
        list(Lines(tolerant=True).of(Part((tmp_path / "none").as_uri(), 0, 9)))
    with pytest.raises(FileUnread, match=r"^(IsADirectory|OS)Error: "):
        list(Lines(tolerant=True).of(Part(tmp_path.as_uri(), 0, 9)))
