"""Encodes rows for PostgreSQL's binary COPY and compresses them: tasks do that, the commit copies them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO

import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder
from psycopg2 import sql

from etl.common.database import Cursor

PART_BYTES = 1 << 20  # of Arrow memory, before encoding
COPY_READ_BYTES = 1 << 20
_CODEC = pa.Codec("zstd")


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Rows of one table as one COPY takes them, compressed."""

    held: bool  # they are for the quarantine
    rows: int
    size: int  # bytes, unpacked
    packed: bytes

    def unpacked(self) -> bytes:
        """Return the rows as one COPY takes them."""
        encoded: bytes = _CODEC.decompress(self.packed, self.size, asbytes=True)
        return encoded


@dataclass(kw_only=True)
class RowPacker:
    """Packs batches of one schema, in parts of at least PART_BYTES."""

    held: bool
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[PackedRows]:
        """Take a batch; yield the part that it fills."""
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= PART_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[PackedRows]:
        """Yield the waiting rows as one part; nothing where none wait."""
        if self._waiting:
            encoded, rows = _encoded(self._waiting), sum(batch.num_rows for batch in self._waiting)
            self._waiting, self._bytes = [], 0
            # what is compressed piece by piece is unpacked as one, and no copy is made of all pieces
            packed = b"".join(_CODEC.compress(piece, asbytes=True) for piece in encoded)
            yield PackedRows(held=self.held, rows=rows, size=sum(map(len, encoded)), packed=packed)


def unpacked(parts: Iterable[PackedRows]) -> Generator[bytes]:
    """Yield each part as one COPY takes it; the next one is unpacked while PostgreSQL takes it."""
    with ThreadPoolExecutor(1) as aside:
        before: Future[bytes] | None = None
        for part in parts:
            begun = aside.submit(part.unpacked)
            if before is not None:
                yield before.result()
            before = begun
        if before is not None:
            yield before.result()


def encode(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Write batches of one schema as one binary COPY takes them."""
    return b"".join(_encoded(batches))


def _encoded(batches: Sequence[pa.RecordBatch]) -> list[bytes]:
    encoder = ArrowToPostgresBinaryEncoder(batches[0].schema)
    return [encoder.write_header(), *map(encoder.write_batch, batches), encoder.finish()]


def copy_encoded(cursor: Cursor, into: sql.Composable, encoded: bytes) -> int:
    """COPY encoded rows into a table, or its named columns; return how many it took."""
    command = sql.SQL("COPY {} FROM STDIN WITH (FORMAT binary)").format(into)
    cursor.copy_expert(command, BytesIO(encoded), size=COPY_READ_BYTES)
    return int(cursor.rowcount)
