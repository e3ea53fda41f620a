"""What a run says at its end of what it did."""

from __future__ import annotations

import pytest

from etl.pipeline import Append, Files, Pipeline, Rate
from etl.progress import done_lines
from etl.run import STOPPED, Summary

FILES, RATE = Files("orders/*.jsonl"), Rate(rows_per_second=5)
STOPPED_EARLY = "orders: it was asked to stop before a batch began; nothing was changed"


@pytest.mark.parametrize(
    ("source", "batches", "outcome", "said"),
    [
        (FILES, 0, "done", ["orders: nothing new had landed; nothing was changed"]),
        (FILES, 0, STOPPED, [f"{STOPPED_EARLY}; what has landed is the next run's"]),
        (RATE, 0, STOPPED, [STOPPED_EARLY]),
        (
            FILES,
            1,
            STOPPED,
            [
                "orders: 1 batch in 0.0 s (0 rows/s); 0 rows in = 0 delivered + 0 quarantined",
                "it was asked to stop, and all that it began is delivered",
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


def same(df: object, **lookups: object) -> object:
    return df
