"""What `sluice recover` says of what it did."""

from __future__ import annotations

from etl.cli.maintenance import recovered_lines
from etl.delivery.batch import Receipt
from etl.pipeline import Append, Files, Pipeline, Rate
from etl.runs.recovery.recover import Recovered

FILES = Files("orders/*.jsonl")


def pipeline(source: Files | Rate = FILES) -> Pipeline:
    return Pipeline(name="orders", sources=(source,), schema="id bigint", transform=same, sink=Append())


def same(df: object, **lookups: object) -> object:
    return df


def test_a_recovery_says_that_it_is_done_and_then_what_had_been_wrong() -> None:
    receipt = Receipt(batch_id=2, delivery_id=9, delivered=1)
    done = Recovered(
        pipeline="orders",
        problem="Checkpoint c is gone",
        restored=(receipt,),
        stream="s",
        seen=1,
        counted="1 delivered file",
    )
    assert list(recovered_lines(pipeline(), done)) == [
        "orders: recovered, and ready to run",
        "  was: Checkpoint c is gone",
        "  put back from the lake: delivery 9, batch 2, 1 row",
        "  stream s, whose checkpoint knows the 1 delivered file",
        "next: `sluice run orders`",
    ]


def test_a_checkpoint_that_knows_nothing_is_not_told_to_know_nothing() -> None:
    done = Recovered(
        pipeline="orders", problem="Checkpoint c is gone", stream="s", counted="0 delivered files"
    )
    assert list(recovered_lines(pipeline(), done))[2:] == ["  stream s", "next: `sluice run orders`"]
    live = Rate(rows_per_second=5)
    assert not any("stream s" in line for line in recovered_lines(pipeline(live), done))


def test_where_nothing_is_wrong_a_recovery_says_that_alone() -> None:
    [line] = recovered_lines(pipeline(), Recovered(pipeline="orders", problem=None))
    assert line == "orders: nothing to recover; checkpoint and ledger agree"
