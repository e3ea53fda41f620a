"""What a run says while it works, and at its end: a bar on a terminal, one line a batch in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from etl import ledger
from etl.batch import Receipt
from etl.database import migrate, session
from etl.landed import landed
from etl.pipeline import Pipeline
from etl.run import Place, Summary
from etl.status import held_by_reason


def line(pipeline: str, receipt: Receipt) -> str:
    """One batch in one line of a log."""
    if receipt.delivered_before:
        return f"{pipeline} batch {receipt.batch_id}: delivered before, as delivery {receipt.delivery_id}"
    held = f", {receipt.quarantined:,} quarantined" if receipt.quarantined else ""
    count = len(receipt.failed)
    failed = f"; {count} expectation{'s' if count > 1 else ''} failed" if count else ""
    rate = receipt.rows_in / receipt.seconds if receipt.seconds else 0
    return (
        f"{pipeline} batch {receipt.batch_id}: {receipt.delivered:,} rows delivered{held}"
        f" (delivery {receipt.delivery_id}, {receipt.seconds:.1f} s, {rate:,.0f} rows/s){failed}"
    )


@contextmanager
def watching(place: Place, pipeline: Pipeline, console: Console) -> Iterator[Callable[[Receipt], None]]:
    """A function to be told of every batch."""
    if not console.is_terminal:
        yield lambda receipt: console.print(line(pipeline.name, receipt), markup=False)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("files · {task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        left = files_left(place, pipeline)
        task = bar.add_task(pipeline.name, total=left or None, figures="starting Spark")
        yield _Watch(bar, task, pipeline).received


class _Watch:
    def __init__(self, bar: Progress, task: object, pipeline: Pipeline) -> None:
        self._bar, self._task, self._pipeline = bar, task, pipeline
        self._started = time.monotonic()
        self._delivered = self._quarantined = 0

    def received(self, receipt: Receipt) -> None:
        self._delivered += receipt.delivered
        self._quarantined += receipt.quarantined
        rate = (self._delivered + self._quarantined) / (time.monotonic() - self._started)
        figures = f"{self._delivered:,} delivered · {self._quarantined:,} quarantined · {rate:,.0f} rows/s"
        self._bar.update(self._task, advance=receipt.inputs, figures=figures)  # type: ignore[arg-type]


def files_left(place: Place, pipeline: Pipeline) -> int:
    """How many landed files no live delivery has yet."""
    migrate(place.services.postgres)
    with session(place.services.postgres) as cursor:
        seen = {one.path for one in ledger.live_inputs(cursor, pipeline.name)}
    return len(landed(pipeline, place.settings.landing) - seen)


def summary_lines(place: Place, pipeline: Pipeline, summary: Summary) -> Iterator[str]:
    """What a run did, why rows were held, where the rows are, and what to do next."""
    if summary.batches:
        rate = summary.rows_in / summary.seconds if summary.seconds else 0
        yield (
            f"{summary.pipeline}: {summary.batches} batches in {summary.seconds:.1f} s ({rate:,.0f} rows/s);"
            f" {summary.rows_in:,} rows in = {summary.delivered:,} delivered + {summary.quarantined:,} quarantined"
        )
    else:
        yield f"{summary.pipeline}: nothing new had landed; nothing was changed"
    held = held_by_reason(place, summary.pipeline)
    if summary.failed:
        yield "expectations that failed, by batches:"
        yield from (f"  {batches:>9,}  {reason}" for reason, batches in summary.failed.most_common())
    if held:
        yield "rows in quarantine, by reason (a row may have several):"
        yield from (f"  {rows:>9,}  {reason}" for reason, rows in held.items())
    sluice = _as_called()
    yield f"Parquet   {place.lake.table(pipeline.table).location}/data/   listed by `{sluice} files {pipeline.name}`"
    yield f'next      eval "$({sluice} env)"      starts the services where needed, and lets psql, boto3 and DuckDB in'
    yield f"          psql -c 'SELECT count(*), max(_batch_id) FROM {pipeline.table}'"
    yield "          psql -c 'SELECT reasons, row FROM sluice.quarantine LIMIT 5'"
    yield f"          {sluice} audit {pipeline.name}      recounts both sinks"


def _as_called() -> str:
    """The command as this process was started, for people to copy."""
    command = Path(sys.argv[0])
    return os.path.relpath(command) if command.name == "sluice" else "sluice"
