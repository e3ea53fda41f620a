"""What Spark told of each batch is in the ledger when the run has ended, however it ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from etl.common.database import Cursor
from etl.common.errors import ContractBroken
from etl.delivery.batch import Receipt
from etl.operations.control.status import states
from etl.runs import progress_recorder
from etl.runs import stream as streams
from etl.runs.progress_recorder import StreamingProgress
from tests.support.data import taps
from tests.support.data.orders import NAME, orders
from tests.support.data.taps import FILES, HOUR, HOURLY, IN_TIME, declare, flat, land_all
from tests.support.home import Home
from tests.support.waiting import until

SPARKS = {"addBatch", "getBatch", "latestOffset", "queryPlanning", "triggerExecution", "walCommit"}
OURS = {"stage", "judge", "draft", "transaction"}


def progress(home: Home, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
    return home.ask(f"SELECT {columns} FROM sluice.batch_progress WHERE {where} ORDER BY stream_id, batch_id")


def test_every_batch_of_two_runs_has_its_rates_and_its_phases(home: Home) -> None:
    home.declare(max_files=1)
    for number in range(3):
        home.land(f"orders/{number}.jsonl", orders(number * 10, 10), ["{broken"])
    first = home.run()
    home.land("orders/3.jsonl", orders(30, 7))
    second = home.run()

    kept = progress(home, "batch_id, run_id, input_rows, operators, state_rows, dropped, watermark")
    nothing = ([], None, None, None)
    assert kept == [
        *((batch, first.run, 11, *nothing) for batch in range(3)),
        (3, second.run, 7, *nothing),
    ]
    assert progress(home, "batch_id", "input_rate IS NULL") == [(0,), (3,)]
    for sparks, ours, rate, rows in progress(home, "durations_ms, phases_ms, processed_rate, input_rows"):
        assert sparks.keys() >= SPARKS
        assert ours.keys() == OURS
        assert all(took >= 0 for took in ours.values())
        assert 0 < sum(ours.values()) <= sparks["addBatch"] <= sparks["triggerExecution"]
        # Spark's own end of a trigger is some milliseconds after the last that it has in its times
        assert 0.9 * 1000 * rows / sparks["triggerExecution"] <= rate <= 1000 * rows / sparks["addBatch"]
    ends = [end for (end,) in progress(home, "ends")]
    assert all(len(end) == 2 and str(home.landing) in end[0] for end in ends)
    assert home.run().batches == 0
    assert len(progress(home, "batch_id")) == 4


def test_state_its_memory_the_watermark_and_what_it_left_out_are_known(home: Home) -> None:
    declare(home, sink="Append()")
    land_all(home, FILES)
    home.run(taps.NAME)

    read = progress(home, "batch_id, input_rows, watermark, latest", "input_rows > 0")
    assert [(batch, rows) for batch, rows, *_ in read] == [(n, len(made)) for n, made in enumerate(FILES)]
    newest = 0  # seconds; the watermark of a batch is of those before it
    for (_, _, watermark, latest), made in zip(read, FILES, strict=True):
        assert watermark is None if newest == 0 else watermark.timestamp() == newest - 2 * HOUR
        assert latest.timestamp() == max(tap.at for tap in made)
        newest = max(newest, *(tap.at for tap in made))

    # what is open after all: the hours and actions that the watermark has not passed
    open_ = {
        (tap.at // HOUR, tap.action)
        for tap in flat(IN_TIME)
        if (tap.at // HOUR + 1) * HOUR > newest - 2 * HOUR
    }
    [(*_, rows, bytes_, operators)] = progress(home, "batch_id, state_rows, state_bytes, operators")[-1:]
    assert rows == len(open_) > 0
    assert bytes_ > 0
    [operator] = operators
    assert (operator["rows"], operator["bytes"]) == (rows, bytes_)

    left_out = dict(home.ask("SELECT batch_id, dropped FROM sluice.delivery WHERE dropped > 0"))
    assert dict(progress(home, "batch_id, dropped", "dropped > 0")) == left_out
    assert left_out.keys() == {4, 7}


def test_a_watermark_of_a_year_that_python_does_not_have_is_told_and_stops_no_batch(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Microseconds that are taken for milliseconds are some 50,000 years ahead."""
    of_numbers = """
    df = df.select("phone", F.timestamp_millis("at").alias("at"), "action")
"""
    declare(
        home,
        body=of_numbers + HOURLY,
        sink="Append()",
        schema="phone string, at bigint, action string",
        ending="json",
    )
    for number, unit in enumerate((1_000, 1_000_000, 1_000, 1_000)):
        lines = ({"phone": tap.phone, "at": tap.at * unit, "action": tap.action} for tap in FILES[0])
        home.write(f"{taps.NAME}/{number}.json", "".join(f"{json.dumps(line)}\n" for line in lines))
    assert home.run(taps.NAME).outcome == "done"
    assert "which is ahead of the clock: the watermark follows it" in caplog.text
    assert "(the watermark was 1," in caplog.text, "Spark leaves out what is behind the watermark before"
    assert "could not be recorded" not in caplog.text
    ends = [
        (watermark and watermark.year, latest.year)
        for watermark, latest in progress(home, "watermark, latest", "input_rows > 0")
    ]
    assert ends[1:] == [(2020, 9999), (9999, 2020), (9999, 2020)]


def test_what_a_run_has_done_is_told_while_it_goes_on(home: Home) -> None:
    home.declare(max_files=1)
    for number in range(3):
        home.land(f"orders/{number}.jsonl", orders(number * 10, 10))
    seen: list[list[tuple[Any, ...]]] = []

    def wait_for_the_first(receipt: Receipt) -> None:
        if receipt.batch_id == 1:
            seen.append(until(lambda: progress(home, "batch_id"), "what the first batch did", patience=60))
            [told] = states(home.place, NAME)
            assert [(run.alive, run.batches, run.records) for run in told.running] == [(True, 2, 20)]

    done = home.run(progress=wait_for_the_first)
    assert seen == [[(0,)]]
    assert progress(home, "batch_id") == [(0,), (1,), (2,)]
    [told] = states(home.place, NAME)
    assert [one.batch_id for one in told.batches] == [2, 1, 0]
    assert told.running == []
    [ran] = told.runs
    assert (ran.run_id, ran.outcome, ran.deliveries, ran.first, ran.last) == (done.run, "done", 3, 1, 3)


def test_the_ledger_keeps_the_newest_batches(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "kept_batches", lambda _: 2)
    home.declare(max_files=1)
    for number in range(3):
        home.land(f"orders/{number}.jsonl", orders(number * 10, 10))
    home.run()
    assert progress(home, "batch_id") == [(1,), (2,)]
    home.land("orders/3.jsonl", orders(30, 10))
    home.run()
    assert progress(home, "batch_id") == [(2,), (3,)]


def test_a_batch_that_was_delivered_before_is_told_once_with_no_phases(home: Home) -> None:
    """A kill came between the commit and Spark's mark: Spark runs the batch again, and the ledger has it."""
    home.declare(max_files=1)
    home.land("orders/0.jsonl", orders(0, 10))
    first = home.run()
    checkpoint = home.checkpoint(first.stream)
    for mark in (checkpoint / "commits").glob("*0*"):
        mark.unlink()
    home.ask("DELETE FROM sluice.batch_progress")
    home.land("orders/1.jsonl", orders(10, 10))
    second = home.run()
    assert second.batches == 1
    kept = progress(home, "batch_id, run_id, phases_ms = '{}'")
    assert kept == [(0, second.run, True), (1, second.run, False)]


def test_a_run_that_stops_keeps_the_batches_before_and_what_stopped_it(home: Home) -> None:
    home.declare(max_files=1, share=0.0)
    home.land("orders/0.jsonl", orders(0, 5))
    home.land("orders/1.jsonl", orders(5, 5, negative=[7]))
    with pytest.raises(ContractBroken) as stopped:
        home.run()
    assert progress(home, "batch_id") == [(0,)]
    message = " ".join(stopped.value.seen.split())
    [told] = states(home.place, NAME)
    assert told.ended is not None
    assert (told.ended.outcome, told.ended.message) == ("ContractBroken", message)
    query = "SELECT outcome, message, remedy FROM sluice.run"
    assert home.ask(query) == [("ContractBroken", message, stopped.value.remedy)]


def test_what_spark_tells_in_a_shape_that_is_not_known_ends_no_run(
    home: Home, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = progress_recorder._insert

    def insert_less(
        cursor: Cursor, stream_id: str, run_id: str, told: StreamingProgress, phases: dict[str, int]
    ) -> None:
        insert(cursor, stream_id, run_id, {"batchId": told["batchId"]}, phases)

    monkeypatch.setattr(progress_recorder, "_insert", insert_less)
    home.declare(max_files=1)
    landed = home.land("orders/0.jsonl", orders(0, 5))
    assert home.run().batches == 1
    home.assert_holds(landed)
    told = [one.getMessage() for one in caplog.records if "could not be recorded" in one.getMessage()]
    assert told == ["the progress of the batches of orders could not be recorded: KeyError('stateOperators')"]


def test_a_run_is_the_same_while_its_progress_can_not_be_kept(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    home.ask("ALTER TABLE sluice.batch_progress RENAME TO elsewhere")
    home.declare(max_files=1)
    landed = home.land("orders/0.jsonl", orders(0, 5)) + home.land("orders/1.jsonl", orders(5, 5))
    assert home.run().batches == 2
    home.assert_holds(landed)
    told = [one.getMessage() for one in caplog.records if "could not be recorded" in one.getMessage()]
    assert len(told) == 1
    assert "batch_progress" in told[0]
