"""A decision on a stopped batch is on what was seen of it then: on no more rows, and on no other rule, lookup or suite."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from etl.common.database import transaction
from etl.common.errors import ContractBroken
from etl.delivery.batch import DeliveryContext, Receipt
from etl.delivery.deliver import deliver
from etl.ledger import stops as ledger_stops
from etl.ledger.stops import SHARE_STOP
from etl.quality.verdict import Counts, Verdict
from tests.support import oracle
from tests.support.arrow_driver import ArrowBatch
from tests.support.oracle import NEGATIVE, ODD, REASONS, UNNAMED

ROWS = 40
LIMIT = 0.05
SHOPS = {"shops": [{"path": "reference/shops.csv", "size": 20, "mtime_ms": 1, "etag": None}]}
OTHER_SHOPS = {"shops": [{"path": "reference/shops.csv", "size": 7, "mtime_ms": 2, "etag": None}]}


@pytest.fixture
def run(run: DeliveryContext) -> DeliveryContext:
    return replace(run, lookups=SHOPS)


def batch(broken: Mapping[str, Sequence[int]]) -> ArrowBatch:
    """Forty rows; of each rule, those numbered break it."""
    flags = [
        sum(1 << REASONS.index(rule) for rule, rows in broken.items() if row in rows) for row in range(ROWS)
    ]
    rows = {
        name: pa.nulls(ROWS, kind)
        for name, kind in zip(oracle.COLUMNS.names, oracle.COLUMNS.types, strict=True)
    }
    rows |= {"id": pa.array(range(ROWS), pa.int64()), "_flags0": pa.array(flags, pa.int64())}
    return ArrowBatch(batch_id=0, parts=[[pa.RecordBatch.from_pydict(rows)]], judged=judged)


def stopped_by(*stops: str) -> ArrowBatch:
    """Return a batch that a rule without rows to hold stops, whatever is in it."""
    return replace(batch({}), judged=lambda counts: replace(judged(counts), success=False, stops=stops))


def judged(counts: Counts) -> Verdict:
    share = counts.held / counts.rows
    stops = (f"{counts.held} of {counts.rows} records would be quarantined ({share:.2%}), {SHARE_STOP}",)
    return Verdict(
        success=not counts.held,
        stops=stops if share > LIMIT else (),
        results=(),
        quarantined=counts.held,
        suite_digest="digest",
        share=share,
    )


def stops(run: DeliveryContext, broken: Mapping[str, Sequence[int]]) -> str:
    with pytest.raises(ContractBroken) as stop:
        deliver(run, batch(broken))
    assert oracle.ask(run.sinks.dsn, "SELECT count(*) FROM warehouse.events") == [(0,)]
    return stop.value.seen


def decide(run: DeliveryContext, action: str) -> None:
    with transaction(run.sinks.dsn) as cursor:
        assert (
            ledger_stops.decide(cursor, "events", run.stream_id, 0, action, who="Ada", why="so") is not None
        )


def decision(run: DeliveryContext) -> list[tuple[Any, ...]]:
    return oracle.ask(run.sinks.dsn, "SELECT decision, lapsed FROM sluice.stopped_batch")


def lapsed(action: str, share: str) -> str:
    """Return the pattern of what a stop says of the decision that it no longer follows."""
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"
    return (
        rf"Ada's decision {action} \(of {moment}, on {re.escape(share)} of the records held\) no longer holds"
    )


def held(run: DeliveryContext, receipt: Receipt) -> list[int]:
    """Return the rows in quarantine; all others are in the table."""
    query = "SELECT (row::jsonb->>'id')::int FROM sluice.quarantine ORDER BY 1"
    rows = [number for (number,) in oracle.ask(run.sinks.dsn, query)]
    assert (receipt.delivered, receipt.quarantined) == (ROWS - len(rows), len(rows))
    return rows


@pytest.mark.parametrize(("action", "left"), [("quarantine-all", [3, 4, 5]), ("accept", [])])
def test_what_is_as_it_was_when_it_was_decided_on_goes_through(
    run: DeliveryContext, action: str, left: list[int]
) -> None:
    assert "7.50%" in stops(run, {NEGATIVE: [3, 4, 5]})
    decide(run, action)
    assert held(run, deliver(run, batch({NEGATIVE: [3, 4, 5]}))) == left
    assert decision(run) == [(action, None)]


@pytest.mark.parametrize(("action", "left"), [("quarantine-all", [3, 4, 5]), ("accept", [])])
def test_a_decision_covers_fewer_rows_than_it_was_on(
    run: DeliveryContext, action: str, left: list[int]
) -> None:
    assert "12.50%" in stops(run, {NEGATIVE: range(3, 8)})
    decide(run, action)
    assert held(run, deliver(run, batch({NEGATIVE: [3, 4, 5]}))) == left


@pytest.mark.parametrize("action", ["quarantine-all", "accept"])
def test_no_decision_covers_more_rows_than_it_was_on(run: DeliveryContext, action: str) -> None:
    stops(run, {NEGATIVE: [3, 4, 5]})
    decide(run, action)
    seen = stops(run, {NEGATIVE: range(1, ROWS)})
    assert "39 of 40 records would be quarantined (97.50%)" in seen
    assert re.search(lapsed(action, "7.50%") + r": .*; 97\.50% would be held now\n", seen)
    assert stops(run, {NEGATIVE: range(1, ROWS)}) != seen  # nothing is decided any more
    decide(run, action)
    assert deliver(run, batch({NEGATIVE: range(1, ROWS)})).rows_in == ROWS


@pytest.mark.parametrize("action", ["quarantine-all", "accept"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"suite_digest": "another"}, "the suite has changed since"),
        ({"lookups": OTHER_SHOPS}, "the lookup shops has changed since"),
        ({"lookups": SHOPS | {"planes": []}}, "the lookup planes has changed since"),
    ],
)
def test_no_decision_outlives_the_suite_and_the_lookups_that_it_was_made_with(
    run: DeliveryContext, action: str, change: dict[str, Any], told: str
) -> None:
    stops(run, {NEGATIVE: [3, 4, 5]})
    decide(run, action)
    after = replace(run, **change)
    seen = stops(after, {NEGATIVE: range(1, ROWS)})
    assert re.search(rf"{lapsed(action, '7.50%')}: {told}; 97\.50% would be held now\n", seen)
    [(nothing, kept)] = decision(run)
    assert nothing is None
    assert f"{told}; 97.50% would be held now" in kept
    decide(run, action)
    assert deliver(after, batch({NEGATIVE: range(1, ROWS)})).rows_in == ROWS
    assert decision(run) == [(action, kept)]


def test_a_model_that_was_trained_since_is_named_as_one(run: DeliveryContext) -> None:
    with_model = replace(run.sinks.pipeline, models={"scorer": object()})  # type: ignore[dict-item]
    run = replace(
        run, sinks=replace(run.sinks, pipeline=with_model), lookups={"scorer": [{"path": "version 1"}]}
    )
    stops(run, {NEGATIVE: [3, 4, 5]})
    decide(run, "accept")
    after = replace(run, lookups={"scorer": [{"path": "version 2"}]})
    assert "the model scorer has changed since" in stops(after, {NEGATIVE: [3, 4, 5]})


def test_an_accepted_batch_lets_no_rule_pass_that_broke_nothing_then(run: DeliveryContext) -> None:
    stops(run, {NEGATIVE: [3, 4, 5]})
    decide(run, "accept")
    receipt = deliver(run, batch({NEGATIVE: [3, 4, 5], UNNAMED: [5, 6], ODD: [1, 7]}))
    assert held(run, receipt) == [5, 6]  # ODD never holds a row
    assert dict(receipt.reasons) == {UNNAMED: 2}


def test_an_accepted_batch_stops_where_others_of_its_rules_hold_too_much(run: DeliveryContext) -> None:
    stops(run, {NEGATIVE: [3, 4, 5]})
    decide(run, "accept")
    seen = stops(run, {NEGATIVE: [3, 4, 5], UNNAMED: range(20, 40)})
    assert (
        "23 of 40 records" in seen
    )  # all that the suite holds, and not what is beside the accepted rows alone


def test_a_suite_that_was_mended_needs_no_decision_any_more(run: DeliveryContext) -> None:
    stops(run, {NEGATIVE: [3, 4, 5]})
    decide(run, "accept")
    receipt = deliver(replace(run, suite_digest="mended"), batch({NEGATIVE: [3]}))
    assert held(run, receipt) == [3]
    assert oracle.ask(run.sinks.dsn, "SELECT state FROM sluice.quality") == [("held",)]


NOW = ("mean failed: observed NaN", "most failed: observed -Infinity", "one failed: 1 of 1 row break it")
BEFORE = ("mean failed: observed None", "most failed: observed -inf", "one failed: 1 of 1 rows break it")


@pytest.mark.parametrize("action", ["quarantine-all", "accept"])
def test_a_decision_on_a_stop_in_the_words_of_the_first_version_counts(
    run: DeliveryContext, action: str
) -> None:
    now = (*NOW, "full failed: 1,234 of 1,234,567 rows break it", "set failed: 1,234 missing values")
    before = [*BEFORE, "full failed: 1234 of 1234567 rows break it", "set failed: 1234 missing values"]
    with pytest.raises(ContractBroken):
        deliver(run, stopped_by(*now))
    oracle.ask(run.sinks.dsn, "UPDATE sluice.stopped_batch SET stops = %s", [before])
    decide(run, action)
    with pytest.raises(
        ContractBroken, match="no longer holds: full failed: 1,235 of 1,234,567 rows break it; 0"
    ):
        deliver(run, stopped_by(*NOW, "full failed: 1,235 of 1,234,567 rows break it"))
    oracle.ask(run.sinks.dsn, "UPDATE sluice.stopped_batch SET stops = %s", [before])
    decide(run, action)
    assert deliver(run, stopped_by(*now)).rows_in == ROWS


def test_a_stop_of_before_evidence_was_kept_is_told_once_more(run: DeliveryContext) -> None:
    stops(run, {NEGATIVE: [3, 4, 5]})
    oracle.ask(
        run.sinks.dsn,
        "UPDATE sluice.stopped_batch SET suite_digest = NULL, lookups = NULL, share = NULL, broken = NULL",
    )
    decide(run, "accept")
    assert "an earlier version of Sluice" in stops(run, {NEGATIVE: [3, 4, 5]})
    decide(run, "accept")
    assert held(run, deliver(run, batch({NEGATIVE: [3, 4, 5]}))) == []


def test_a_stop_says_where_most_malformed_records_are_and_what_is_wrong_with_them(
    run: DeliveryContext,
) -> None:
    """It is evidence alone: a decision is on what it was on, wherever the malformed records are."""
    places = ["file:///a.jsonl"] * 3 + ["file:///b.csv"] * 4 + ["kafka://clicks/0/7", "kafka://clicks/0/8"]
    raws = ["{}"] * 3 + ["{"] * 4 + ["[]"] * 2
    assert oracle.detail_of("{") is None
    records = [*zip(raws, places, strict=True), ("[]", "file:///c.jsonl")]

    def made(malformed: Sequence[tuple[str, str]]) -> ArrowBatch:
        unread = oracle.MadeBatch(batch_id=0, paths=(), rows=(), malformed=tuple(malformed))
        return replace(batch({NEGATIVE: [3, 4, 5]}), malformed=unread.malformed_arrow())

    with pytest.raises(ContractBroken) as stop:
        deliver(run, made(records))
    told = [
        "file:///b.csv (4 records)",
        "file:///a.jsonl: {} is no object (3 records)",
        "kafka://clicks/0: [] is no object (2 records)",
    ]
    assert f"\n  malformed, most often: {'; '.join(told)}\n" in stop.value.seen
    assert oracle.ask(run.sinks.dsn, "SELECT malformed FROM sluice.stopped_batch") == [(told,)]
    decide(run, "accept")
    receipt = deliver(run, made(reversed(records)))
    assert (receipt.delivered, receipt.malformed) == (ROWS, len(records))
