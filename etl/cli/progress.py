"""Shows the progress of a run and its result: a bar on a terminal, one line per batch in a log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from etl.cli.shared import called, shown
from etl.common import steps
from etl.common.json_log import JsonStream, of_batch
from etl.common.steps import Step
from etl.common.wording import drifted, left_out, pluralize, records_read
from etl.ledger.quarantine import RowSelection, by_reason
from etl.pipeline import Pipeline
from etl.runs.follow import RunControl
from etl.runs.summary import STOPPED, Summary
from etl.runs.workspace import Workspace

if TYPE_CHECKING:
    from rich.console import Console, Group

    from etl.delivery.batch import Receipt

PHASES = {  # what goes on from a step on
    Step.ATTEMPT_OPENED: "reading, judging, writing",
    Step.STAGED: "verdict",
    Step.JUDGED: "metadata",
    Step.POINTER_DRAFTED: "commit",
    Step.BATCH_DONE: "looking for more",
}
RULES_SHOWN = 8


def line(pipeline: str, receipt: Receipt) -> str:
    """Tell of one batch in one line of a log."""
    if receipt.delivered_before:
        return f"{pipeline} batch {receipt.batch_id}: delivered before, as delivery {receipt.delivery_id}"
    held = f", {receipt.quarantined:,} quarantined" if receipt.quarantined else ""
    dropped = f"; {left_out(receipt.dropped)}" if receipt.dropped else ""
    count = len(receipt.failed)
    failed = f"; {pluralize(count, 'expectation')} failed" if count else ""
    columns = f"; its tables have changed: {'; '.join(receipt.columns)}" if receipt.columns else ""
    rate = receipt.records / receipt.seconds if receipt.seconds else 0
    read = f"{_read(receipt)} = " if _read(receipt) else ""
    what = f"batch {receipt.batch_id}" if receipt.kind == "stream" else receipt.kind
    return (
        f"{pipeline} {what}: {read}{pluralize(receipt.delivered, 'row')} delivered{held}"
        f" (delivery {receipt.delivery_id}, {receipt.seconds:.1f} s, {rate:,.0f} rows/s){failed}{dropped}{columns}"
    )


def log_batch(pipeline: str, receipt: Receipt) -> None:
    """Write what became of a batch as one line of a log of JSON, with all its figures."""
    action = "batch-delivered-before" if receipt.delivered_before else "batch-delivered"
    figures = {"action": action, **of_batch(receipt.json())}
    logging.getLogger("sluice").info("%s", line(pipeline, receipt), extra=figures)


@contextmanager
def watching(
    pipeline: Pipeline, console: Console, control: RunControl
) -> Iterator[Callable[[Receipt], None]]:
    """Yield a function to be told of every batch, which shows it on the terminal or as a line of a log."""
    if isinstance(sys.stderr, JsonStream):
        yield lambda receipt: log_batch(pipeline.name, receipt)
        return
    if not console.is_terminal:
        yield lambda receipt: console.print(line(pipeline.name, receipt))
        return
    from rich.live import Live

    watch = _Watch(pipeline, control)
    with Live(watch, console=console, transient=True):
        steps.listen(watch.reached)
        try:
            yield watch.received
        finally:
            steps.listen(None)


class _Watch:
    """What a terminal shows: the files done, the phase of the batch, the figures, and held rows by rule."""

    def __init__(self, pipeline: Pipeline, control: RunControl) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self._control = control
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("files"),
            TimeElapsedColumn(),
        )
        self._task = self._bar.add_task(pipeline.name, total=None)
        self._phase, self._figures = "starting Spark", ""
        self._done = Summary(pipeline=pipeline.name, stream="", run="")

    def __rich__(self) -> Group:
        from rich.console import Group

        if self._control.every is None and self._control.awaited:
            self._bar.update(self._task, total=self._control.awaited)
        held = (shown(f"  {rows:>9,}  {rule}") for rule, rows in self._done.reasons.most_common(RULES_SHOWN))
        stopping = [shown(f"  {self._control.stopping}")] if self._control.stop_requested_by else []
        return Group(self._bar, shown(f"  {self._now}{self._figures}"), *held, *stopping)

    @property
    def _now(self) -> str:
        if not self._control.waiting or self._control.every is None:
            return self._phase
        return f"waiting, looks for more every {self._control.every.total_seconds():g} s"

    def reached(self, step: Step) -> None:
        if step in PHASES:
            self._phase = f"batch {self._done.batches + 1}: {PHASES[step]}"

    def received(self, receipt: Receipt) -> None:
        done = self._done
        done.add(receipt)
        done.seconds += receipt.seconds
        rate = done.records / done.seconds if done.seconds else 0
        figures = (
            _read(done),
            f"{done.delivered:,} delivered",
            f"{done.quarantined:,} quarantined",
            f"{rate:,.0f} rows/s",
        )
        self._figures = "".join(f" · {one}" for one in figures if one)
        self._bar.update(self._task, advance=receipt.inputs)


def summary_lines(workspace: Workspace, pipeline: Pipeline, summary: Summary) -> Iterator[str]:
    """Yield lines that say what a run did, why rows are held, where the rows are, and what to do next."""
    yield from done_lines(pipeline, summary)
    held = by_reason(workspace.services.postgres, summary.pipeline, RowSelection())
    if summary.failed:
        yield "expectations that failed, by batches:"
        yield from (f"  {batches:>9,}  {reason}" for reason, batches in summary.failed.most_common())
    if held:
        yield "rows in quarantine now, of every run, by reason (a row may have several):"
        yield from (f"  {one.rows:>9,}  {one.reason}" for one in held)
    if summary.batches:
        yield from _next_lines(workspace, pipeline, held=bool(held))
    elif held:
        yield f"`sluice quarantine list {pipeline.name}` shows them; release and discard end their hold"


def _next_lines(workspace: Workspace, pipeline: Pipeline, *, held: bool) -> Iterator[str]:
    """Yield lines that say where the rows are that have landed now, and what a person may do with them."""
    from etl.sinks.lake.lake import TableLocation

    name = pipeline.name
    yield f"Parquet   {TableLocation.of(workspace.lake, pipeline.table).location}/data/   listed by `sluice files {name}`"
    yield 'next      eval "$(sluice env)"      starts the services where needed, and connects psql, boto3 and DuckDB'
    yield f"          psql -c 'SELECT count(*), max(_batch_id) FROM {pipeline.quoted_table}'"
    if held:
        yield f"          {called()} quarantine list {name}      shows held rows; release and discard end their hold"
    yield f"          {called()} audit {name}      recounts both sinks"


def _read(done: Receipt | Summary) -> str:
    return records_read(done.records, rows_in=done.rows_in, malformed=done.malformed)


def done_lines(pipeline: Pipeline, summary: Summary) -> Iterator[str]:
    """Yield lines that say what a run delivered, or why it delivered nothing."""
    if summary.batches:
        rate = summary.records / summary.seconds if summary.seconds else 0
        rows = _read(summary) or f"{pluralize(summary.rows_in, 'row')} in"
        yield (
            f"{summary.pipeline}: {pluralize(summary.batches, 'batch', 'batches')} in {summary.seconds:.1f} s"
            f" ({rate:,.0f} rows/s);"
            f" {rows} = {summary.delivered:,} delivered + {summary.quarantined:,} quarantined"
        )
        if summary.dropped:
            hold = (
                ""
                if pipeline.tells_late
                else "; `late=` in the declaration holds such records (docs/state.md)"
            )
            yield left_out(summary.dropped) + hold
        if summary.columns:
            yield f"its tables have changed: {'; '.join(summary.columns)}"
        yield from drifted(summary.unknown, summary.missing)
        if summary.unknown and pipeline.unknown == "report":
            yield f"`sluice suggest {pipeline.name} --schema` writes a schema that has them; docs/reading.md"
        if summary.outcome == STOPPED:
            yield "it was asked to stop, and every batch that it began is delivered"
    elif summary.outcome == STOPPED:
        what_next = "; the next run delivers what has landed" if pipeline.replayable else ""
        yield f"{summary.pipeline}: it was asked to stop before a batch began; nothing was changed{what_next}"
    else:
        yield f"{summary.pipeline}: nothing new had landed; nothing was changed"
