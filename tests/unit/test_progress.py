"""What a run says at its end of what it did."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from rich.console import Console

from etl.cli.progress import done_lines, line, watching
from etl.delivery.batch import Receipt
from etl.pipeline import Append, Files, Pipeline, Rate
from etl.runs.follow import RunControl
from etl.runs.summary import STOPPED, Summary

FILES, RATE = Files("orders/*.jsonl"), Rate(rows_per_second=5)
STOPPED_EARLY = "orders: it was asked to stop before a batch began; nothing was changed"


@pytest.mark.parametrize(
    ("source", "batches", "outcome", "said"),
    [
        (FILES, 0, "done", ["orders: nothing new had landed; nothing was changed"]),
        (FILES, 0, STOPPED, [f"{STOPPED_EARLY}; the next run delivers what has landed"]),
        (RATE, 0, STOPPED, [STOPPED_EARLY]),
        (
            FILES,
            1,
            STOPPED,
            [
                "orders: 1 batch in 0.0 s (0 rows/s); 0 rows in = 0 delivered + 0 quarantined",
                "it was asked to stop, and every batch that it began is delivered",
            ],
        ),
    ],
)
def test_a_run_that_delivered_nothing_says_why(
    source: Files | Rate, batches: int, outcome: str, said: list[str]
) -> None:
    pipeline = Pipeline(name="orders", sources=(source,), schema="id bigint", transform=same, sink=Append())
    summary = Summary(pipeline="orders", stream="s", run="r", batches=batches, outcome=outcome)
    assert list(done_lines(pipeline, summary)) == said


def test_a_run_tells_what_it_read_beside_what_came_out_and_what_was_left_out() -> None:
    windows = Pipeline(name="hours", sources=(FILES,), schema="at timestamp", transform=same, sink=Append())
    figures = {
        "rows_in": 7,
        "records": 1186,
        "delivered": 1,
        "quarantined": 6,
        "malformed": 4,
        "dropped": 200,
    }
    summary = Summary(pipeline="hours", stream="s", run="r", batches=1, **figures)
    said = list(done_lines(windows, summary))
    assert said[0].endswith(
        "; 1,186 records read; 3 rows out + 4 malformed or late records = 1 delivered + 6 quarantined"
    )
    alone = next(iter(done_lines(windows, replace(summary, malformed=0))))
    assert alone.endswith("; 1,186 records read; 7 rows out = 1 delivered + 6 quarantined")
    assert said[1].startswith(
        "200 rows, or groups of rows, came behind the watermark and are in neither sink; `late=`"
    )
    assert "late=" not in list(done_lines(replace(windows, late="at"), summary))[1]
    batch = Receipt(batch_id=6, delivery_id=9, seconds=2.0, **figures)
    read = "1,186 records read; 3 rows out + 4 malformed or late records"
    assert line("hours", batch).startswith(
        f"hours batch 6: {read} = 1 row delivered, 6 quarantined (delivery 9, 2.0 s, 593 rows/s)"
    )
    assert read in watched(windows, batch)
    assert "1 delivered · 6 quarantined · 593 rows/s" in watched(windows, batch)
    assert "read" not in watched(windows, replace(batch, records=7))
    assert "2/3" in watched(windows, replace(batch, inputs=2), awaited=3)
    assert "/3" not in watched(windows, replace(batch, inputs=2), awaited=3, every=timedelta(seconds=9))
    receipt = Receipt(batch_id=6, delivery_id=9, delivered=1, dropped=1, columns=("column c added (text)",))
    assert line("hours", receipt).endswith("; its tables have changed: column c added (text)")
    summary.add(receipt)
    assert "its tables have changed: column c added (text)" in done_lines(windows, summary)
    assert "1 row, or group of rows, came behind the watermark and is in neither sink" in line(
        "hours", receipt
    )


def watched(pipeline: Pipeline, receipt: Receipt, **control: Any) -> str:
    """Return what a terminal shows once a batch is done."""
    terminal = Console(file=io.StringIO(), force_terminal=True, width=160)
    with watching(pipeline, terminal, RunControl(**control)) as received:
        received(receipt)
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue()


def test_a_summary_is_read_again_as_it_was_printed_and_none_where_a_part_is_missing() -> None:
    summary = Summary(pipeline="orders", stream="s", run="r", deliveries=[9], snapshot_id=1 << 62)
    summary.reasons["negative"] += 2
    printed = json.loads(json.dumps(summary.json()))
    assert Summary.from_json(printed | {"exit_code": 3}) == summary
    assert summary.json() == printed
    for part in printed:
        assert Summary.from_json({name: printed[name] for name in printed if name != part}) is None
    assert Summary.from_json(None) is None


def same(df: object, **lookups: object) -> object:
    return df
