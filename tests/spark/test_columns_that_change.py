"""A transform that puts out more and wider columns: the stream goes on, and what came before is read with what comes."""

from __future__ import annotations

import json

from etl.operations.suites.what_if import what_if
from etl.runs.replay.columns import column_changes
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from tests.support.data.orders import DECLARATION, RULES, orders, rule
from tests.support.home import Home, without_batch

NARROW = (
    DECLARATION.format(name="orders", max_files=1, share=1.0)
    .replace('"id bigint, shop string, amount double, at timestamp"', '"id int, shop string, amount float, at timestamp"')
    .replace('.select("id", "shop", "amount", "at", "city")', '.select("at", "id", "amount")')
)  # fmt: skip
KNOWN = rule("column_values_to_not_be_null", "city is known", "warning", column="city")


def test_more_and_wider_columns_are_delivered_judged_and_replayed_with_what_came_before(home: Home) -> None:
    home.judge(*RULES[:2])
    home.declare(text=NARROW)
    landed = home.land("orders/1.jsonl", orders(0, 20, negative=[3]), ["{broken"])
    [first] = home.run().deliveries
    home.judge(*RULES)
    home.declare(max_files=1)  # id and amount are wider, shop and city are new
    landed += home.land("orders/2.jsonl", orders(20, 20, negative=[25]))
    assert sorted(home.run().columns) == [
        "column amount widened (real to double precision)",
        "column city added (text)",
        "column id widened (integer to bigint)",
        "column shop added (text)",
    ]
    assert home.ask("SELECT count(*), count(city), count(shop) FROM warehouse.orders") == [(38, 14, 19)]
    assert home.ask("SELECT pg_typeof(id)::text, pg_typeof(amount)::text FROM warehouse.orders LIMIT 1") == [
        ("bigint", "double precision")
    ]
    home.assert_clean()

    suite = home.root / "tried.json"
    suite.write_text(json.dumps({"name": "orders", "expectations": [*RULES, KNOWN]}))
    before, after = what_if(home.place, home.pipeline(), suite, spark=home.spark).batches
    assert (before.held, after.held) == (20, 6)  # no city was delivered then

    planned = plan(home.place, home.pipeline(), Selection(deliveries=((first, first),)))
    replay(home.place, home.pipeline(), planned, who="tester", spark=home.spark)
    eyes = home.reader()
    assert eyes.in_postgres(system=()) == eyes.on_lake(system=()) == landed.delivered
    assert without_batch(eyes.held_on_lake()) == landed.held_on_lake
    home.assert_clean()


def test_a_plan_of_a_replay_tells_what_it_does_to_the_columns_and_the_replay_does_that(home: Home) -> None:
    home.judge(*RULES[:2])
    home.declare(text=NARROW)
    home.land("orders/1.jsonl", orders(0, 5))
    [first] = home.run().deliveries
    chosen = Selection(deliveries=((first, first),))
    assert column_changes(home.place, home.pipeline(), spark=home.spark) == ()
    home.declare(max_files=1)
    told = column_changes(home.place, home.pipeline(), spark=home.spark)
    assert sorted(told)[:2] == [
        "column amount widened (real to double precision)",
        "column city added (text)",
    ]
    said = home.sluice_here("replay", "orders", "--deliveries", str(first), "--plan")
    assert said.returncode == 0, said.stderr
    assert [line.removeprefix("  columns    ") for line in said.stdout.splitlines()[-4:]] == list(told)
    done = replay(
        home.place, home.pipeline(), plan(home.place, home.pipeline(), chosen), who="t", spark=home.spark
    )
    assert done.receipt is not None
    assert sorted(done.receipt.columns) == sorted(told)
    home.declare(text=NARROW)
    refused = "refused: id is bigint, the pipeline delivers integer"
    assert refused in column_changes(home.place, home.pipeline(), spark=home.spark)
