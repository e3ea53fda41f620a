"""Reads the packed rows that tasks have staged in PostgreSQL, a few parts at a time.

They come by a binary COPY: as a query's result each byte would be two hexadecimal digits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO

from psycopg2 import sql

from etl.common.database import Cursor, copy_out
from etl.common.statements import Statements
from etl.sinks.warehouse.packed_rows import PackedRows

STATEMENTS = Statements(__name__)

MOST = 8  # parts that are read at a time, each of some megabytes before it was packed
# https://www.postgresql.org/docs/18/sql-copy.html, "Binary Format": a signature, flags and the length of what else there is
# of a header, here nothing; then each row, which begins with the number of its fields; -1 in its place ends them.
_HEADER_BYTES = 19
_END = struct.pack("!h", -1)
# Up to the bytes of the last of six fields; a length stands before each field.
_ROW = struct.Struct("!hiqiqi?iqiqi")


@dataclass(kw_only=True)
class StagedParts:
    """The parts of an attempt's staging table, each to be read once."""

    staging: str
    held: bool | None = None  # those that are for the quarantine, or for the table; None: of both kinds
    tasks: Sequence[int] | None = None  # None: of all
    last: dict[int, int] = field(default_factory=dict)  # by task: the part that was read last

    def read(self, cursor: Cursor) -> list[PackedRows]:
        """Return the next parts that are there; none where all of these have been read."""
        command = STATEMENTS.compose(
            "next_parts",
            staging=sql.Identifier(self.staging),
            read=sql.Literal([*self.last]),
            last=sql.Literal([*self.last.values()]),
            held=sql.Literal(self.held),
            tasks=sql.Literal(None if self.tasks is None else [*self.tasks]),
            most=sql.Literal(MOST),
        )
        copied = BytesIO()
        copy_out(cursor, command, copied)
        parts = []
        for task, part, held, rows, size, packed in _rows(copied.getvalue()):
            self.last[task] = part
            parts.append(PackedRows(held=held, rows=rows, size=size, packed=packed))
        return parts


def _rows(copied: bytes) -> Iterator[tuple[int, int, bool, int, int, bytes]]:
    at = _HEADER_BYTES
    while not copied.startswith(_END, at):
        _, _, task, _, part, _, held, _, rows, _, size, length = _ROW.unpack_from(copied, at)
        at += _ROW.size + length
        yield task, part, held, rows, size, copied[at - length : at]
