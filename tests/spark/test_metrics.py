"""What a pipeline's columns looked like is kept with each batch, and rules compare a batch with those before it."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from etl.common.errors import ContractBroken, SetupError
from etl.operations.maintenance.sweep import sweep
from etl.operations.suites.data_docs import history
from etl.operations.suites.what_if import what_if
from etl.quality.history import past_batches, spans
from etl.quality.metrics import ColumnMetrics, merged
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from tests.support.data.orders import DECLARATION, RULES, Landed, Order, orders
from tests.support.home import Home

MEASURED = ("amount", "shop", "at", "city")
SECOND = 1_000_000


def measured(home: Home, *rules: dict[str, Any], metrics: tuple[str, ...] = MEASURED) -> None:
    """Declare the pipeline of orders, one file a batch, with metrics and some more rules."""
    text = DECLARATION.format(name="orders", max_files=1, share=1.0)
    home.declare("orders", text=text.replace('suite="orders",', f'suite="orders", metrics={metrics!r},'))
    home.judge(*RULES, *rules)


def across(
    kind: str, name: str, severity: str = "warning", *, column: str = "", **way: Any
) -> dict[str, Any]:
    return {
        "type": f"expect_{kind}_to_be_between",
        "kwargs": {"column": column} if column else {},
        "severity": severity,
        "meta": {"name": name, "across": {"last": 4, "at_least": 3, **way}},
    }


def kept(home: Home) -> list[dict[str, ColumnMetrics]]:
    """Return the metrics of every batch, in order, with their sketches."""
    found: dict[int, dict[str, ColumnMetrics]] = {}
    for line in home.ask(
        "SELECT delivery_id, column_name, rows_seen, null_count, nan_count, minimum, maximum, mean, deviation,"
        " earliest, latest, distinct_sketch, quantile_sketch FROM sluice.column_metric ORDER BY delivery_id, number"
    ):
        delivery, column, rows, nulls, nans, least, most, mean, deviation, earliest, latest, *sketches = line
        distinct, quantiles = (None if one is None else bytes(one) for one in sketches)
        found.setdefault(delivery, {})[column] = ColumnMetrics(
            column=column, rows=rows, nulls=nulls, nans=nans, minimum=least, maximum=most, mean=mean,
            deviation=deviation, earliest=earliest, latest=latest, distinct=distinct, quantiles=quantiles,
        )  # fmt: skip
    return list(found.values())


def replayed(home: Home, delivery: int) -> None:
    planned = plan(home.place, home.pipeline(), Selection(deliveries=((delivery, delivery),)))
    replay(home.place, home.pipeline(), planned, who="tester", spark=home.spark)


def assert_describes(found: ColumnMetrics, made: Sequence[Order]) -> None:
    """Require that the metrics of amounts equal what numpy computes of them."""
    values = np.array([one.amount for one in made])
    assert (found.rows, found.nulls, found.nans) == (len(made), 0, 0)
    assert (found.minimum, found.maximum) == (values.min(), values.max())
    assert found.mean == pytest.approx(values.mean())
    assert found.deviation == pytest.approx(values.std())
    assert found.distinct_estimate() == pytest.approx(len(set(values)), rel=0.05)
    for rank in (0.05, 0.5, 0.95):
        quantile = found.quantile(rank)
        assert quantile is not None
        assert (values <= quantile).mean() == pytest.approx(rank, abs=0.03)


def test_the_metrics_of_a_batch_are_those_of_all_its_rows_and_sketches_of_batches_merge(home: Home) -> None:
    measured(home)
    batches = [orders(0, 3000, negative=range(100, 200)), orders(3000, 50), orders(2000, 700)]
    for number, made in enumerate(batches):
        home.land(f"orders/{number}.jsonl", made, ["{broken"])
    home.run()
    found = kept(home)
    for metrics, made in zip(found, batches, strict=True):
        assert list(metrics) == list(MEASURED)
        assert_describes(metrics["amount"], made)
        assert metrics["city"].nulls == sum(one.shop == "Z" for one in made)
        assert round(metrics["shop"].distinct_estimate() or 0) == 4
        assert metrics["shop"].mean is metrics["shop"].quantiles is metrics["shop"].latest is None
        moments = [dt.datetime.fromtimestamp(one.at // SECOND, dt.UTC) for one in made]
        for said, moment in ((metrics["at"].earliest, moments[0]), (metrics["at"].latest, moments[-1])):
            assert said is not None
            assert abs(said - moment) < dt.timedelta(seconds=1)
    assert_describes(merged([one["amount"] for one in found]), [one for made in batches for one in made])
    [(share, age)] = home.ask(
        "SELECT null_share, age > interval '1 day' FROM sluice.column_history WHERE column_name = 'city' OR"
        " column_name = 'at' ORDER BY commit_seq, column_name DESC LIMIT 1"
    )
    assert (share, age) == (0.25, None)


def test_any_span_of_batches_is_one_without_reading_a_row(home: Home) -> None:
    measured(home)
    batches = [orders(0, 400), orders(400, 100), orders(500, 300)]
    for number, made in enumerate(batches):
        home.land(f"orders/{number}.jsonl", made)
    home.run()
    home.ask(
        "UPDATE sluice.delivery SET committed_at = committed_at - interval '40 days' WHERE batch_id < 2 RETURNING 1"
    )
    whole, *rest = spans(home.dsn, home.pipeline())
    assert (rest, whole.start, whole.batches) == ([], None, 3)
    assert_describes(whole.columns[0], [one for made in batches for one in made])
    first, second = spans(home.dsn, home.pipeline(), by="day")
    assert (first.batches, second.batches) == (2, 1)
    assert_describes(first.columns[0], batches[0] + batches[1])
    [later] = spans(home.dsn, home.pipeline(), since=second.start)
    assert later.columns == second.columns
    said = home.sluice("columns", "orders", "--by", "month")
    assert (said.returncode, len(re.findall(r"\d batch(?:es)?\b", said.stdout))) == (0, 2), said.stderr
    assert "  amount                   500 rows, 0.00% null, about" in said.stdout
    assert [one["batches"] for one in json.loads(home.sluice("columns", "orders", "--json").stdout)] == [3]
    assert home.sluice("columns", "orders", "--since", "yesterday").returncode == 2


def test_reports_and_sketches_are_taken_out_after_their_time_and_figures_stay(home: Home) -> None:
    measured(home)
    home.land("orders/a.jsonl", orders(0, 50))
    home.run()
    home.ask("UPDATE sluice.delivery SET committed_at = committed_at - interval '40 days' RETURNING 1")
    home.land("orders/b.jsonl", orders(50, 50))
    home.run()
    assert sweep(home.place, home.pipeline()).reports == 0
    settings = home.place.settings.model_copy(update={"quality_retention": dt.timedelta(days=30)})
    place = replace(home.place, settings=settings)
    assert sweep(place, home.pipeline(), dry_run=True).reports == 1
    assert sweep(place, home.pipeline()).reports == 1
    assert sweep(place, home.pipeline()).reports == 0
    kept_now = home.ask("SELECT report IS NULL FROM sluice.quality ORDER BY delivery_id")
    assert kept_now == [(True,), (False,)]
    old, new = (metrics["amount"] for metrics in kept(home))
    assert old.distinct is old.quantiles is None
    assert (old.rows, new.rows, new.distinct is None) == (50, 50, False)
    [whole] = spans(place.services.postgres, home.pipeline())
    assert (whole.columns[0].rows, whole.columns[0].distinct) == (100, None)
    assert len(history(place, home.pipeline())) == 1


def test_nulls_nan_infinity_and_far_moments_are_counted_and_spoil_nothing(home: Home) -> None:
    measured(home)
    text = (home.root / "my pipelines" / "orders.py").read_text()
    far = '.selectExpr("id", "shop", "amount", "at + make_interval(if(id = 2, 10000, 0)) AS at", "city")'
    home.declare("orders", text=text.replace('.select("id", "shop", "amount", "at", "city")', far))
    lines = [f"1,A,{one},2020-01-01T00:00:00Z" for one in ("NaN", "Infinity", "")]
    lines += ["2,A,2,2020-01-01T00:00:00Z", ""]
    home.write("orders/odd.csv", "\n".join(["id,shop,amount,at", *lines]))
    home.write("orders/empty.jsonl", "")
    home.run()
    [first, *_] = kept(home)
    amount = first["amount"]
    assert (amount.rows, amount.nulls, amount.nans, amount.values) == (4, 1, 1, 2)
    assert (amount.minimum, amount.maximum, amount.mean) == (2, float("inf"), float("inf"))
    assert first["at"].latest == first["at"].earliest == dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def test_metrics_as_json_are_what_they_were(home: Home) -> None:
    measured(home)
    home.land("orders/a.jsonl", orders(0, 30))
    home.run()
    for metrics in kept(home)[0].values():
        assert ColumnMetrics.of_json(json.loads(json.dumps(metrics.json()))) == metrics


def test_a_column_that_becomes_wider_has_the_same_values_as_before(home: Home) -> None:
    home.judge(*RULES)
    text = DECLARATION.format(name="orders", max_files=1, share=1.0)
    text = text.replace('suite="orders",', 'suite="orders", metrics=("id", "amount"),')
    home.declare(
        text=text.replace('"id bigint, shop string, amount double', '"id int, shop string, amount float')
    )
    for name in ("before", "after"):
        home.land(f"orders/{name}.jsonl", orders(0, 500))
        home.run()
        home.declare(text=text)
    [whole] = spans(home.dsn, home.pipeline())
    assert [one.distinct_estimate() for one in whole.columns] == [pytest.approx(500, rel=0.05)] * 2


def test_a_column_whose_name_is_no_word_is_delivered_and_measured(home: Home) -> None:
    name = 'a.b `c` "d"'
    text = DECLARATION.format(name="orders", max_files=1, share=1.0)
    home.declare(
        text=text.replace(
            '"shop", "amount", "at", "city")', f'"amount").withColumnRenamed("amount", {name!r})'
        ).replace('suite="orders",', f"suite='orders', metrics=({name!r},),")
    )
    home.judge(RULES[1])
    home.land("orders/a.jsonl", orders(0, 30))
    assert home.run().delivered == 30
    assert kept(home)[0][name].values == 30
    assert home.ask('SELECT sum("a.b `c` ""d""") FROM warehouse.orders') == [
        (sum(o.amount for o in orders(0, 30)),)
    ]


def test_a_replay_keeps_its_own_metrics(home: Home) -> None:
    measured(home)
    home.land("orders/a.jsonl", orders(0, 30))
    [delivery] = home.run().deliveries
    replayed(home, delivery)
    first, second = kept(home)
    assert second["amount"].json() == first["amount"].json()


def usual(home: Home, count: int = 4) -> Landed:
    """Batches that are like one another, the newest row of each a minute old."""
    landed = Landed()
    now = int(dt.datetime.now(dt.UTC).timestamp()) * SECOND
    for number in range(count):
        made = [
            Order(id=number * 20 + i, shop="ABC"[i % 3], amount=10.0 + i, at=now - 60 * SECOND)
            for i in range(20)
        ]
        landed += home.land(f"orders/usual{number}.jsonl", made)
    return landed


def unlike(seconds: int = 60, **values: Any) -> list[Order]:
    now = int(dt.datetime.now(dt.UTC).timestamp()) * SECOND
    return [
        Order(
            id=1000 + i, **{"shop": "ABC"[i % 3], "amount": 10.0 + i, "at": now - seconds * SECOND} | values
        )
        for i in range(20)
    ]


DRIFTS = (
    across("table_row_count", "volume", times=[0.5, 2]),
    across("column_proportion_of_non_null_values", "null share", column="city", within=0.1),
    across("column_unique_value_count", "distinct", column="shop", times=[0.8, 1.2]),
    across("column_mean", "mean", column="amount", deviations=3),
    across("column_max", "freshness", column="at", times=[0, 100]),
)
NAMES = {one["meta"]["name"] for one in DRIFTS}
OTHER = unlike(seconds=864_000, amount=40.0, shop="Z")[:9]  # in all these respects


def test_a_batch_unlike_those_before_breaks_the_rules_and_one_like_them_does_not(home: Home) -> None:
    measured(home, *DRIFTS)
    landed = usual(home)
    assert not NAMES & home.run().failed.keys()
    landed += home.land("orders/unlike.jsonl", OTHER)
    assert home.run().failed.keys() >= NAMES
    home.assert_rows(landed)  # a warning about the table is delivered, and said
    assert home.ask("SELECT state FROM sluice.quality ORDER BY delivery_id DESC LIMIT 1") == [("flawed",)]
    [(report,)] = home.ask("SELECT report FROM sluice.quality ORDER BY delivery_id DESC LIMIT 1")
    for result in json.loads(report)["results"][-len(DRIFTS) :]:
        assert not result["success"]
        assert {"min_value", "max_value"} & result["expectation_config"]["kwargs"].keys()
    same = what_if(home.place, home.pipeline(), home.root / "our-suites" / "orders.json", spark=home.spark)
    assert {rule.status for batch in same.batches for rule in batch.rules} == {"same"}


def test_a_batch_with_an_infinity_and_one_of_long_ago_judge_none_after_them(home: Home) -> None:
    measured(home, *DRIFTS)
    usual(home)
    odd = unlike(seconds=25 * 365 * 86_400)
    home.land("orders/5.jsonl", [*odd[:19], replace(odd[19], amount=float("inf"))])
    usual_again = [replace(one, id=number + 5000) for number, one in enumerate(unlike())]
    home.land("orders/6.jsonl", usual_again)
    home.run()
    assert home.ask("SELECT state FROM sluice.quality ORDER BY delivery_id") == [
        *[("good",)] * 4, ("flawed",), ("good",),
    ]  # fmt: skip


def test_too_few_batches_before_judge_nothing(home: Home) -> None:
    measured(home, *DRIFTS)
    usual(home, 2)
    home.land("orders/unlike.jsonl", OTHER)
    assert not home.run().failed.keys() & NAMES


def test_a_critical_one_stops_the_batch_until_a_person_decides(home: Home) -> None:
    measured(home, across("table_row_count", "volume", "critical", times=[0.5, 2]))
    landed = usual(home)
    home.run()
    few = home.land("orders/few.jsonl", unlike()[:3])
    with pytest.raises(ContractBroken, match="volume failed: observed 3"):
        home.run()
    home.assert_rows(landed)
    [(batch,)] = home.ask("SELECT batch_id FROM sluice.stopped_batch")
    done = home.sluice("decide", "orders", "--batch", str(batch), "--accept", "--why", "a holiday")
    assert done.returncode == 0, done.stderr
    home.run()
    home.assert_rows(landed + few)


def test_what_was_replaced_is_no_measure(home: Home) -> None:
    measured(home)
    usual(home, 3)
    first = home.run().deliveries[0]
    assert len(past_batches(home.dsn, home.pipeline(), 10)) == 3
    replayed(home, first)
    assert len(past_batches(home.dsn, home.pipeline(), 10)) == 2


MISTAKES = (
    (across("column_mean", "a", column="id", times=[0, 2]), "name it in the pipeline's `metrics`"),
    (across("column_median", "b", column="amount", times=[0, 2]), "can't be judged across batches"),
    (across("column_mean", "c", column="amount"), "exactly one of times, within, deviations"),
    (across("column_max", "d", column="at", deviations=2), "exactly one of times, within"),
    (across("table_row_count", "e", times=[2, 1]), "must not be above"),
    (across("table_row_count", "f", times=[1]), "two numbers"),
    (across("table_row_count", "g", within=-1), "a number of 0 or more"),
    (across("table_row_count", "h", within=1, last=2, at_least=3), "1 <= at_least <= last"),
    (
        across("column_max", "j", column="amount", times=[0, 2]),
        "amount is double, of which batches have no such",
    ),
    (
        across("column_mean", "k", column="city", times=[0, 2]),
        "city is string, of which batches have no such",
    ),
    (across("table_row_count", "i", within=1, lats=2), "takes last, at_least, same and one of"),
)


def test_every_mistake_in_such_rules_is_said_before_any_batch(home: Home) -> None:
    measured(home, *(declared for declared, _ in MISTAKES))
    home.land("orders/a.jsonl", orders(0, 3))
    with pytest.raises(SetupError) as refused:
        home.run()
    lines = str(refused.value).splitlines()
    for number, (_, said) in enumerate(MISTAKES, len(RULES) + 1):
        assert [line for line in lines if f"expectation {number} (" in line and said in line]


def test_metrics_of_a_column_that_is_not_there_are_refused(home: Home) -> None:
    measured(home, metrics=("amuont",))
    home.land("orders/a.jsonl", orders(0, 3))
    with pytest.raises(SetupError, match=r"keeps metrics of amuont, and its output has the columns id, shop"):
        home.run()
