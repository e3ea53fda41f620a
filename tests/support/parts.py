"""Lands files for the readers of a task, and tells the parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

COLUMNS = pa.schema({"uri": pa.string(), "start": pa.int64(), "end": pa.int64()})


@dataclass(frozen=True)
class Land:
    """Writes files below a folder, each under a name of its own."""

    folder: Path
    landed: list[Path] = field(default_factory=list)

    def __call__(self, content: str | bytes, *, cuts: Sequence[int] = (), suffix: str = "") -> pa.RecordBatch:
        """Write a file, and return its parts: the bytes at which it is cut begin new ones."""
        data = content.encode() if isinstance(content, str) else content
        file = self.folder / f"{len(self.landed)}{suffix}"
        file.write_bytes(data)
        self.landed.append(file)
        starts, ends = [0, *cuts], [*cuts, len(data)]
        return pa.RecordBatch.from_arrays([[file.as_uri()] * len(starts), starts, ends], schema=COLUMNS)
