"""Samples delivered rows as arrays, by a seed, with no more rows in memory than the sample and one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample of rows; each row there was as likely to be drawn."""

    rows: pa.Table
    there: int  # how many rows there were


def drawn(table: Table, columns: Sequence[str], *, most: int, seed: int) -> Sample:
    """Draw at most `most` rows of the table's snapshot at random; the same ones each time for a `seed`."""
    draw = np.random.default_rng(seed)
    known = table.schema().as_arrow()
    schema = pa.schema([known.field(name) for name in columns])
    sample, lots, there = schema.empty_table(), np.empty(0), 0
    for batch in _batches(table, columns):
        there += len(batch)
        part = pa.Table.from_batches([batch]).select(list(columns)).cast(schema)
        sample = pa.concat_tables([sample, part])
        lots = np.concatenate([lots, draw.random(len(batch))])
        if len(lots) > most:
            lowest = np.sort(np.argpartition(lots, most)[:most])
            sample, lots = sample.take(lowest), lots[lowest]
    return Sample(rows=sample, there=there)


def _batches(table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file after the other, in the order of the files' names.

    pyiceberg's own reader would read all of them ahead.
    """
    scan = table.scan(selected_fields=tuple(columns))
    reader = ArrowScan(table.metadata, table.io, scan.projection(), AlwaysTrue())
    for task in sorted(scan.plan_files(), key=lambda task: str(task.file.file_path)):
        yield from reader.to_record_batches([task])
