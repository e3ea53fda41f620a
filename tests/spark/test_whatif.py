"""A suite that is tried over stored batches says what a run of the same files with it then does."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from etl.common.errors import ContractBroken, SetupError
from etl.common.settings import Settings
from etl.ledger.quarantine import RowSelection
from etl.ledger.quarantine import held_rows as held_rows_of
from etl.operations.suites.what_if import BatchChange, WhatIf, what_if
from etl.runs.replay.release import release
from etl.services import Services
from tests.support.data.orders import NEGATIVE, NO_CITY, NO_ID, RULES, Order, orders, rule
from tests.support.databases import new_database
from tests.support.home import Home

TRIED = (
    rule("column_values_to_be_between", NEGATIVE, "warning", column="amount", min_value=-10),
    rule("column_values_to_not_be_null", NO_CITY, "warning", column="city"),
    rule("column_values_to_be_in_set", "shop is A to C", "info", column="shop", value_set=["A", "B", "C"]),
    rule("column_values_to_be_unique", "amount is unique", "info", column="amount"),
    rule("column_max_to_be_between", "no large amount", "critical", column="amount", max_value=20),
    rule("column_values_to_not_be_null", "at is given", "critical", column="at", mostly=0.5),
)


@pytest.fixture
def elsewhere(
    tmp_path: Path,
    template: str,
    services: Services,
    lake_uri: str,
    settings_for: Callable[..., Settings],
    spark: SparkSession,
) -> Iterator[Home]:
    """Make a second place, in which nothing was ever delivered."""
    with new_database(services.postgres, template=template) as dsn:
        yield Home.at(tmp_path / "elsewhere", dsn, services, f"{lake_uri}/2", settings_for, spark)


def deliver_three_batches(home: Home) -> None:
    """Deliver a batch that differs in rows, one that stays as it is, and one that the tried suite stops."""
    home.land("orders/a.jsonl", orders(0, 30, negative=[2, 25]), ["{broken", "nor this"])
    home.land("orders/b.jsonl", [*orders(30, 8, negative=[33]), Order(id=100, amount=-12.0, shop="Z")])
    home.land("orders/c.csv", [Order(id=200), Order(id=201), Order(id=202, shop="B", amount=2.0)])
    home.land("orders/d.jsonl", [Order(id=300), Order(id=301, amount=-3.0)])
    home.land("orders/e.jsonl", orders(400, 8))
    home.declare(max_files=1)
    assert home.run().batches >= 3


def tried(home: Home, *rules: dict[str, Any], **more: Any) -> WhatIf:
    suite = home.root / "tried.json"
    suite.write_text(json.dumps({"name": "orders", "expectations": list(rules)}))
    return what_if(home.place, home.pipeline(), suite, spark=home.spark, **more)


def held_rows(home: Home, batch: int) -> dict[int, list[str]]:
    """Return the reasons of each held order of a batch, by its id."""
    query = "SELECT (row::json->>'id')::bigint, reasons FROM sluice.quarantine WHERE batch_id = %s AND row IS NOT NULL"
    return dict(home.ask(query, batch))


def said(report: str) -> dict[str, tuple[Any, ...]]:
    """Return by a rule's name what Great Expectations said of it."""
    return {
        one["expectation_config"]["meta"]["name"]: (
            one["success"],
            one["result"].get("element_count"),
            one["result"].get("unexpected_count"),
        )
        for one in json.loads(report)["results"]
    }


def would_say(batch: BatchChange) -> dict[str, tuple[Any, ...]]:
    return {
        one.reason: (one.now.success, one.now.element_count, one.now.unexpected_count)
        for one in batch.rules
        if one.now is not None
    }


def test_what_if_equals_a_run_of_the_same_files_with_that_suite(home: Home, elsewhere: Home) -> None:
    deliver_three_batches(home)
    before = home.history()
    found = tried(home, *TRIED)
    assert home.history() == before, "nothing was written"

    shutil.rmtree(elsewhere.landing)
    shutil.copytree(home.landing, elsewhere.landing)
    elsewhere.declare(max_files=1)
    elsewhere.judge(*TRIED)
    with pytest.raises(ContractBroken):
        elsewhere.run()

    ran = elsewhere.ask(
        "SELECT batch_id, delivered, quarantined - malformed, malformed, report FROM sluice.delivery"
        " JOIN sluice.quality USING (delivery_id) ORDER BY batch_id"
    )
    stopped = elsewhere.ask("SELECT batch_id, stops, report FROM sluice.stopped_batch")
    assert len(ran) >= 2
    assert len(stopped) == 1
    by_id = {batch.batch_id: batch for batch in found.batches}
    for number, delivered, held, malformed, report in ran:
        batch = by_id[number]
        assert (batch.delivered, batch.held, batch.malformed) == (delivered, held, malformed)
        assert not batch.stops
        assert would_say(batch) == said(report)
        assert_crossings(batch, held_rows(home, number), held_rows(elsewhere, number))
    (number, stops, report) = stopped[0]
    assert list(by_id[number].stops) == stops
    assert would_say(by_id[number]) == said(report)
    assert {rule.reason: rule.status for rule in found.batches[0].rules} == {
        NEGATIVE: "changed",
        NO_CITY: "changed",
        "shop is A to C": "new",
        "amount is unique": "new",
        "no large amount": "new",
        "at is given": "new",
        NO_ID: "removed",
    }
    assert found.totals["malformed"] == sum(malformed for _, _, _, malformed, _ in ran) == 2
    assert found.lines()[1].startswith("  2 malformed or late records besides, held by any suite")
    assert any(line.endswith("newly delivered, 2 malformed or late records") for line in found.lines())
    assert found.totals["newly_held"] > 1
    assert found.totals["newly_delivered"] > 1
    assert {(batch.suite_digest,) for batch in found.batches} == set(home.ask(DIGEST))
    assert {(found.suite_digest,)} == set(elsewhere.ask(DIGEST))


DIGEST = "SELECT DISTINCT suite_digest FROM sluice.delivery"


def assert_crossings(batch: BatchChange, then: dict[int, list[str]], now: dict[int, list[str]]) -> None:
    """Require that the rows that change sides are those that the two quarantines say, rule by rule."""
    newly_held, newly_delivered = now.keys() - then.keys(), then.keys() - now.keys()
    assert (batch.newly_held, batch.newly_delivered) == (len(newly_held), len(newly_delivered))
    by_rule = Counter(reason for number in newly_held for reason in now[number])
    freed = Counter(reason for number in newly_delivered for reason in then[number])
    assert {one.reason: one.newly_held for one in batch.rules if one.newly_held} == by_rule
    assert {one.reason: one.newly_delivered for one in batch.rules if one.newly_delivered} == freed


@pytest.mark.slow
def test_the_suite_in_force_changes_nothing_and_a_release_is_no_batch(home: Home) -> None:
    deliver_three_batches(home)
    rows = held_rows_of(home.dsn, "orders", RowSelection(reason=NEGATIVE, limit=1))
    corrected = {rows[0].quarantine_id: {"amount": 1.0}}
    release(home.place, home.pipeline(), rows, corrected, who="t", why="t", spark=home.spark)
    streamed = home.ask("SELECT delivery_id FROM sluice.delivery WHERE kind = 'stream' ORDER BY commit_seq")
    found = tried(home, *RULES, last=2)
    assert [(batch.delivery_id,) for batch in found.batches] == streamed[-2:]
    assert found.totals["batches_that_differ"] == 0
    assert {one.status for batch in found.batches for one in batch.rules} == {"same"}
    assert found.lines()[-1] == "  2 batches would be as they are"


def test_a_mistaken_suite_is_refused_before_anything_is_read(home: Home) -> None:
    home.land("orders/a.jsonl", orders(0, 4, negative=[2]))
    with pytest.raises(SetupError, match="no delivered batch yet"):
        tried(home, *RULES)
    home.run()
    with pytest.raises(SetupError, match="the output has no column price"):
        tried(home, rule("column_values_to_not_be_null", "price is given", "info", column="price"))
    refused = home.sluice_here("whatif", "orders", "--suite", "not there.json")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "not there.json can't be read as a suite" in refused.stderr

    (home.root / "tried.json").write_text(json.dumps({"name": "tried", "expectations": list(TRIED[:2])}))
    shown = home.sluice_here("whatif", "orders", "--suite", "tried.json", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["totals"] == {
        "batches": 1,
        "batches_that_differ": 1,
        "batches_that_stop": 0,
        "rows": 4,
        "malformed": 0,
        "newly_held": 1,
        "newly_delivered": 1,
    }
