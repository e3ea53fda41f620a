"""Reads the batches of a task; imported by the workers of Spark, it imports little itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from etl.common.record_columns import MALFORMED_COLUMN, REPORT, SOURCE_PATH
from etl.sources.counts import Drift, Reporter, Uris
from etl.sources.unreadable import FileUnfit, short

# Reads the batches of one task as records with MALFORMED_COLUMN and DETAIL, and counts how they drift from the schema.
Read = Callable[[Iterator[pa.RecordBatch], Drift], Iterator[pa.RecordBatch]]


def beside(
    read: Callable[[pa.Array, Drift], pa.RecordBatch], batches: Iterator[pa.RecordBatch], drift: Drift
) -> Iterator[pa.RecordBatch]:
    """Yield what `read` makes of the first column of each batch; the others stay beside it."""
    for batch in batches:
        rows = read(batch.column(0), drift)
        columns = [*rows.columns, *batch.columns[1:]]
        yield pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *batch.schema.names[1:]])


def uris_beside(records: pa.RecordBatch) -> Iterable[str]:
    """Return where records are that have SOURCE_PATH."""
    uris: list[str] = records[SOURCE_PATH].to_pylist()
    return uris


def uris_on_topics(records: pa.RecordBatch) -> Iterable[str]:
    """Return where records are that have the columns of `etl.pipeline.declaration.RECORD`."""
    places = zip(*(records[name].to_pylist() for name in ("_topic", "_partition", "_offset")), strict=True)
    return (f"kafka://{topic}/{partition}/{offset}" for topic, partition, offset in places)


def good_and_report(
    read: Read,
    schema: pa.Schema,
    uris: Uris,
    carried: int,
    size: Callable[[pa.RecordBatch], int],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of the records that are not malformed, after a row that has a REPORT alone where one is due.

    It comes first, for a transform need not take all rows. A task's reports have at most as many malformed records as
    may be `carried`. The last one tells the `size` of all batches: without it the task did not come to its end.
    """
    reporter, drift, sizes = Reporter(carried=carried), Drift(), list[int]()
    for records in read(_measured(batches, size, sizes), drift):
        malformed = records[MALFORMED_COLUMN].is_valid()
        rows = records.filter(pc.invert(malformed)) if malformed.true_count else records
        rows = rows.append_column(REPORT, pa.nulls(len(rows), pa.string())).select(schema.names)
        if malformed.true_count or not drift.is_none:
            told = reporter.report(records.filter(malformed), uris, drift)
            yield pa.RecordBatch.from_pylist([{REPORT: told}], schema=rows.schema)
        yield rows
    if total := sum(sizes):
        yield pa.RecordBatch.from_pylist([{REPORT: reporter.end(total)}], schema=schema)


def _measured(
    batches: Iterator[pa.RecordBatch], size: Callable[[pa.RecordBatch], int], sizes: list[int]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sizes.append(size(batch))
        yield batch


def no_size(_: pa.RecordBatch) -> int:
    """Return the size of what nobody knows the size of: records that come from elsewhere than files."""
    return 0


def all_records(read: Read, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield all records of the batches, the malformed ones among them."""
    return read(batches, Drift())


def only_malformed(read: Read, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the malformed records of the batches."""
    for records in read(batches, Drift()):
        yield records.filter(records[MALFORMED_COLUMN].is_valid())


def unfit_parts(read: Read, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the files of which a part can't be read to its end, each with the reason."""
    for batch in batches:
        for at in range(len(batch)):
            part = batch.slice(at, 1)
            try:
                deque(read(iter([part]), Drift()), maxlen=0)
            except FileUnfit as unfit:
                why = short(str(unfit))
                yield pa.RecordBatch.from_arrays([part.column(0), pa.array([why])], names=["uri", "why"])
