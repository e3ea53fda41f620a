"""A replay that would deliver fewer rows than it replaces changes nothing and asks, beyond the share that is declared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from etl.common.errors import FewerRows
from etl.runs.replay.plan import ReplayPlan, Selection, plan
from etl.runs.replay.replay import replay
from tests.support.data.orders import CITIES, DECLARATION, RULES, Landed, Order, rule
from tests.support.home import Home

ALL = Selection(batches=(0, 1))
SAID = "The replay of orders changed nothing, because it would deliver {} rows in place of 40 ({} fewer)"


def declare(home: Home, *, share: float | None = None, keeps: str = "true") -> None:
    """Declare orders of which only those of a shop that is known are put out, and of these only some."""
    text = DECLARATION.format(name="orders", max_files=1, share=1.0)
    own = "" if share is None else f"max_fewer_share={share},"
    for old, new in (
        ("max_fewer_share=1.0,", own),
        ('df.join(shops, "shop", "left")', f'df.where("{keeps}").join(shops, "shop")'),
    ):
        assert old in text
        text = text.replace(old, new)
    home.declare(text=text)


@pytest.fixture
def forty(home: Home) -> Landed:
    """Deliver two batches of twenty orders, each of shops that are known; the declaration says nothing of fewer."""
    declare(home)
    shops = sorted(CITIES)
    made = [Order(id=number, shop=shops[number % 2]) for number in range(40)]
    landed = home.land("orders/0.jsonl", made[:20]) + home.land("orders/1.jsonl", made[20:])
    assert home.run().delivered == 40
    return landed


def planned(home: Home) -> ReplayPlan:
    return plan(home.place, home.pipeline(), ALL)


def again(home: Home, **options: Any) -> int:
    """Replay both batches and return how many rows are delivered."""
    done = replay(home.place, home.pipeline(), planned(home), who="tests", spark=home.spark, **options)
    assert done.receipt is not None
    return done.receipt.delivered


def test_a_lookup_that_lost_rows_takes_none_out_of_the_sinks_until_a_person_says_why(
    home: Home, forty: Landed
) -> None:
    assert planned(home).made_otherwise == []
    home.write("reference/shops.csv", "shop,city\nA,Aarhus\n")
    words = ("replay", "orders", "--batches", "0..1")
    said = home.sluice_here(*words, "--plan")
    assert said.returncode == 0, said.stderr
    assert "at least   38 rows delivered" in said.stdout
    assert "the lookup shops has changed since" in said.stdout
    stopped = home.sluice_here(*words)
    assert stopped.returncode == 4, stopped.stderr
    assert SAID.format(20, "50.00%") + ", more than max_fewer_share allows (5.00%)" in stopped.stderr
    assert "held: 0 (before: 0)" in stopped.stderr
    assert "not as it was: the lookup shops has changed since" in stopped.stderr
    assert "or let the missing rows go, with --fewer and the reason in --why" in stopped.stderr
    home.assert_holds(forty)
    assert home.sluice(*words, "--fewer").returncode == 2
    home.assert_holds(forty)

    done = home.sluice_here(*words, "--json", "--fewer", "--why", "shop B was never ours")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["delivery"]["delivered"] == 20
    kept = "SELECT outcome, why FROM sluice.run WHERE kind = 'replay' ORDER BY started_at"
    assert home.ask(kept) == [("FewerRows", None), ("done", "shop B was never ours")]
    assert home.ask("SELECT count(*) FROM sluice.attempt WHERE outcome = 'stopped'") == [(1,)]
    forty.orders = [one for one in forty.orders if one.shop == "A"]
    home.assert_rows(forty)
    home.assert_one_history()
    home.assert_clean()


def test_so_few_are_missing_as_is_declared_and_one_more_asks(home: Home, forty: Landed) -> None:
    declare(home, keeps="id >= 3")
    with pytest.raises(FewerRows) as stop:
        again(home)
    assert SAID.format(37, "7.50%") in stop.value.seen
    home.assert_holds(forty)
    declare(home, keeps="id >= 2")
    assert again(home) == 38
    declare(home, share=0, keeps="id >= 3")
    with pytest.raises(FewerRows, match=r"37 rows in place of 38 \(2\.63% fewer\), .* allows \(0\.00%\)"):
        again(home)
    declare(home, share=1.0, keeps="false")
    assert again(home) == 0
    declare(home, share=0)
    assert again(home) == 40, "of none, any number is not fewer"
    home.assert_holds(forty)


def test_rows_that_todays_suite_holds_are_told_apart_from_those_that_are_not_there(
    home: Home, forty: Landed
) -> None:
    home.judge(
        *RULES, rule("column_values_to_be_between", "id is grown", "warning", column="id", min_value=3)
    )
    declare(home, keeps="id <> 17")
    with pytest.raises(FewerRows) as stop:
        again(home)
    assert SAID.format(36, "10.00%") in stop.value.seen
    assert "held: 3 (before: 0): id is grown (3)\n" in stop.value.seen
    assert "not as it was: the suite has changed since" in stop.value.seen
    home.assert_holds(forty)
    assert again(home, fewer=True, why="the first three were tests, and 17 is void") == 36
    home.assert_one_history()
    home.assert_clean()


def test_changed_files_that_are_accepted_are_named_where_they_bring_fewer_rows(
    home: Home, forty: Landed
) -> None:
    home.land("orders/1.jsonl", forty.orders[20:25])
    (home.landing / "orders/0.jsonl").unlink()
    with pytest.raises(FewerRows) as stop:
        again(home, accept_changed=True)
    assert SAID.format(5, "87.50%") in stop.value.seen
    [told] = [line for line in stop.value.seen.splitlines() if line.startswith("  not as it was: ")]
    assert "orders/0.jsonl is gone" in told
    assert "orders/1.jsonl" in told
    home.assert_rows(forty)
    assert again(home, accept_changed=True, fewer=True, why="landed by mistake") == 5


def test_the_plan_says_how_many_rows_it_delivers_at_least(home: Home, forty: Landed) -> None:
    assert len(forty.orders) == 40
    found = {share: replace(planned(home), max_fewer_share=share).least for share in (0, 0.05, 0.07, 0.1, 1)}
    assert found == {0: 40, 0.05: 38, 0.07: 38, 0.1: 36, 1: 0}
    assert planned(home).json()["least"] == 38
