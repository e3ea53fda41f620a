"""Reads the batches of a task; imported by the workers of Spark, it imports little itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa

from etl.common.record_columns import MALFORMED_COLUMN
from etl.sources.unreadable import FileUnfit, short

Read = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]  # of the batches of one task


def beside(
    read: Callable[[pa.Array], pa.RecordBatch], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield what `read` makes of the first column of each batch; the others stay beside it."""
    for batch in batches:
        rows = read(batch.column(0))
        columns = [*rows.columns, *batch.columns[1:]]
        yield pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *batch.schema.names[1:]])


def only_malformed(rows: Read, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the malformed records among those that `rows` makes of the batches."""
    for some in rows(batches):
        yield some.filter(some[MALFORMED_COLUMN].is_valid())


def unfit_parts(rows: Read, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the files of which a part can't be read to its end, each with the reason."""
    for batch in batches:
        for at in range(len(batch)):
            part = batch.slice(at, 1)
            try:
                deque(rows(iter([part])), maxlen=0)
            except FileUnfit as unfit:
                why = short(str(unfit))
                yield pa.RecordBatch.from_arrays([part.column(0), pa.array([why])], names=["uri", "why"])
