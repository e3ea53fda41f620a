"""A replay replaces exactly what its plan says, in both sinks at once, beside the stream and never against it."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from etl.common.errors import FewerRows, InputsChanged, InputsUnreadable, NeedsPerson, SetupError
from etl.common.steps import Step
from etl.delivery.batch import Receipt
from etl.ledger.quarantine import RowSelection as Rows
from etl.ledger.quarantine import discard, held_rows
from etl.operations.maintenance.sweep import sweep
from etl.operations.serving.read import moment
from etl.runs.replay.plan import ReplayPlan, Selection, plan
from etl.runs.replay.replay import Replayed, replay
from tests.support.catalog import open_catalog
from tests.support.data.orders import DECLARATION, NEGATIVE, NO_CITY, RULES, START, Landed, orders, rule
from tests.support.histories import Histories
from tests.support.home import Home, failing_at, once_at

HELD_CITY = rule("column_values_to_not_be_null", NO_CITY, "warning", column="city")
IN_THE_SWAP = (
    Step.STAGED,
    Step.JUDGED,
    Step.MANIFEST_WRITTEN,
    Step.POINTER_DRAFTED,
    Step.PIPELINE_LOCKED,
    Step.DELIVERY_INSERTED,
    Step.INPUTS_INSERTED,
    Step.ROWS_MERGED,
    Step.QUARANTINE_MERGED,
    Step.QUALITY_INSERTED,
    Step.POINTER_SWAPPED,
)


def planned(home: Home, chosen: Selection) -> ReplayPlan:
    return plan(home.place, home.pipeline(), chosen)


def again(home: Home, chosen: Selection, **options: Any) -> Replayed:
    return replay(
        home.place, home.pipeline(), planned(home, chosen), who="tests", spark=home.spark, **options
    )


def four_batches(home: Home) -> Landed:
    """Deliver four batches of one file; each has one order that is held and two of a shop that nobody knows."""
    home.declare(max_files=1)
    landed = Landed()
    for number in range(4):
        start = number * 8
        landed += home.land(f"orders/{number}.jsonl", orders(start, 8, negative=[start + 1]))
    home.run()
    home.assert_holds(landed)
    return landed


def test_batches_are_judged_anew_and_replaced_in_both_sinks_and_nothing_else_is(histories: Histories) -> None:
    home, _ = histories.begin(four_batches)
    chosen = Selection(batches=(1, 2))
    others = home.ask("SELECT count(*), sum(id) FROM warehouse.orders WHERE _batch_id IN (0, 3)")
    home.judge(RULES[0], RULES[1], HELD_CITY)
    said = planned(home, chosen)
    assert (said.rows, said.held, len(said.inputs), said.changed) == (14, 2, 2, [])
    assert said.leaving("data", said.deliveries)
    assert any("14 rows of PostgreSQL" in line for line in said.lines())
    one_batch = "as one batch: its share of held rows"
    assert any(one_batch in line for line in said.lines())
    assert not any(one_batch in line for line in planned(home, Selection(batches=(1, 1))).lines())

    done = again(home, chosen).receipt
    assert done is not None
    assert (done.rows_in, done.delivered, done.quarantined) == (16, 10, 6)
    assert done.reasons == {NEGATIVE: 2, NO_CITY: 4}
    home.assert_one_history()
    home.assert_clean()
    assert home.ask("SELECT count(*), sum(id) FROM warehouse.orders WHERE _batch_id IN (0, 3)")[0][0] >= 14
    kept = "SELECT count(*), sum(id) FROM warehouse.orders WHERE _delivery_id <> %s"
    assert home.ask(kept, done.delivery_id) == others
    replaced = home.ask("SELECT batch_id, superseded_by FROM sluice.replaced ORDER BY batch_id")
    assert replaced == [(1, done.delivery_id), (2, done.delivery_id)]


def test_the_stream_goes_on_after_its_newest_batch_was_replayed(histories: Histories) -> None:
    home, landed = histories.begin(four_batches)
    again(home, Selection(batches=(2, 3)))
    assert home.run().batches == 0
    landed += home.land("orders/4.jsonl", orders(32, 8))
    assert home.run().batches == 1
    home.assert_holds(landed)
    home.assert_clean()


def test_a_replay_can_be_replayed_and_follows_what_took_a_batchs_place(histories: Histories) -> None:
    home, landed = histories.begin(four_batches)
    first = again(home, Selection(batches=(0, 1))).receipt
    second = again(home, Selection(batches=(0, 0))).receipt
    assert first is not None
    assert second is not None
    assert second.rows_in == 16, "batch 1 came with it, for one delivery has both"
    now = moment(home.place, home.pipeline())
    assert now.replaced == {
        1: first.delivery_id,
        2: first.delivery_id,
        first.delivery_id: second.delivery_id,
    }
    home.assert_holds(landed)
    home.assert_clean()


@pytest.mark.slow
def test_zero_rows_can_take_the_place_of_many(histories: Histories) -> None:
    home, _ = histories.begin(four_batches)
    text = (home.root / "my pipelines" / "orders.py").read_text()
    home.declare(text=text.replace("return df.join(", 'return df.where("id < 8").join('))
    done = again(home, Selection(batches=(1, 3))).receipt
    assert done is not None
    assert (done.rows_in, done.files) == (0, 0)
    home.assert_one_history()
    assert home.ask("SELECT count(*) FROM warehouse.orders") == [(7,)]
    home.assert_clean()


def test_a_changed_or_vanished_input_stops_a_replay_until_it_is_accepted(histories: Histories) -> None:
    home, landed = histories.begin(four_batches)
    changed, gone = home.landing / "orders/1.jsonl", home.landing / "orders/2.jsonl"
    fewer = orders(8, 3)
    changed.write_text("".join(order.json + "\n" for order in fewer))
    gone.unlink()
    before = home.history()
    with pytest.raises(InputsChanged, match=r"2 of the inputs .* orders/2.jsonl is gone") as caught:
        again(home, Selection(batches=(1, 2)))
    assert "--accept-changed" in caught.value.remedy
    assert home.history() == before

    again(home, Selection(batches=(1, 2)), accept_changed=True)
    landed.orders = [order for order in landed.orders if not 8 <= (order.id or 0) < 24] + fewer
    home.assert_holds(landed)
    landed += home.land("orders/4.jsonl", orders(32, 8))
    home.run()
    home.assert_holds(landed)
    meanwhile = "The replay of orders changed nothing: its inputs are not as they were when it was planned"
    with once_at(Step.STAGED, changed.touch), pytest.raises(InputsChanged, match=meanwhile) as caught:
        again(home, Selection(batches=(0, 2)), accept_changed=True)
    assert "the same replay again" in caught.value.remedy
    home.assert_holds(landed)
    home.assert_clean()


DRIFT = """
from etl.pipeline import Append, Files, Pipeline

PIPELINE = Pipeline(
    name="orders", sources=(Files("g/*.csv", max_files=1),), schema="{schema}", sink=Append(), unreadable="{unreadable}",
    transform=lambda df: df.withColumnsRenamed({{"first": "a"}}),
)
"""


def drifted(home: Home) -> Counter[Any]:
    """Two deliveries of 500 rows; the schema gained a column between them, and another one has another name since."""
    for number, (schema, header) in enumerate(
        (("first int, b int", "first,b"), ("a int, b int, d int", "a,b,d"))
    ):
        home.declare(text=DRIFT.format(schema=schema, unreadable="stop"))
        row = ",".join(["1"] * len(header.split(",")))
        home.write(f"g/{number}.csv", "\n".join([header, *[row] * 500]) + "\n")
        home.run()
    return counts(home)


def counts(home: Home) -> Counter[Any]:
    """Count the rows of both sinks, without the column that the first objects lack."""
    home.columns = pa.schema([(name, pa.int32()) for name in "ab"])
    eyes = home.reader()
    found = eyes.in_postgres(system=())
    assert found == eyes.on_lake(system=())
    return found


def test_a_replay_whose_inputs_can_not_all_be_read_takes_no_row_out_of_a_sink(home: Home) -> None:
    before, history, chosen = drifted(home), home.history(), Selection(batches=(0, 1))
    assert before.total() == 1000
    old = home.uri("g/0.csv")
    said = planned(home, chosen)
    why = "its CSV header is first, b; the schema is a, b, d: it lacks a; d, has first instead"
    assert dict(said.foretold) == {old: why}
    assert any(f"{old}: its CSV header is first, b" in line for line in said.lines())
    assert any("unreadable 1 file" in line for line in said.lines())
    # what was delivered before is not held without a word
    home.declare(text=DRIFT.format(schema="a int, b int, d int", unreadable="hold"))
    with pytest.raises(
        InputsUnreadable, match=r"changed nothing.*g/0\.csv can't be read: .*CSV header"
    ) as stop:
        again(home, chosen)
    assert "it would deliver 500 rows in place of 1,000 (50.00% fewer)" in stop.value.seen
    for word in ("--accept-unreadable", "--fewer"):
        assert word in stop.value.remedy
        with pytest.raises(SetupError, match=f"{word} needs a reason"):
            again(home, chosen, **{word.removeprefix("--").replace("-", "_"): True})
    why = {"why": "the old half is of no use"}
    with pytest.raises(InputsUnreadable, match=r"deliver 500 rows in place of 1,000\n") as stop:
        again(home, chosen, fewer=True, **why)  # which is no word on what can't be read
    assert "--fewer" not in stop.value.remedy
    with pytest.raises(
        FewerRows, match=r"(?s)held: 1 \(before: 0\): malformed \(1\)\n.*g/0\.csv: its CSV header"
    ):
        again(home, chosen, accept_unreadable=True, **why)
    assert counts(home) == before
    assert home.history()["delivery"] == history["delivery"]

    done = again(home, chosen, accept_unreadable=True, fewer=True, **why).receipt
    assert done is not None
    assert (done.delivered, done.quarantined) == (500, 1)
    assert home.ask("SELECT why FROM sluice.run WHERE outcome = 'done' AND kind = 'replay'") == [
        ("the old half is of no use",)
    ]
    assert counts(home).total() == 500
    repeated = again(home, chosen).receipt  # held as before, and it is declared that such files are
    assert repeated is not None
    assert (repeated.delivered, repeated.quarantined) == (500, 1)
    home.declare(text=DRIFT.format(schema="a int, b int, d int", unreadable="stop"))
    stopped = home.sluice_here("replay", "orders", "--deliveries", str(repeated.delivery_id))
    assert stopped.returncode == 4, stopped.stderr
    assert "it would deliver 500 rows in place of 500\n" in stopped.stderr
    assert "with --accept-unreadable and the reason in --why\n" in stopped.stderr, "no row goes"
    home.assert_one_history()
    home.assert_clean()


def test_an_interval_names_every_delivery_with_a_row_in_it(histories: Histories) -> None:
    home, landed = histories.begin(four_batches)
    text = (home.root / "my pipelines" / "orders.py").read_text()
    home.declare(text=text.replace('suite="orders",', 'suite="orders", interval="at",'))
    base = dt.datetime.fromtimestamp(START / 1e6, dt.UTC)
    hours = (base + dt.timedelta(hours=7), base + dt.timedelta(hours=9, minutes=30))
    said = planned(home, Selection(interval=hours))
    assert [one.batch_id for one in said.deliveries] == [0, 1]
    assert "  13 rows of these outside the interval, which come again as well" in "\n".join(said.lines())
    again(home, Selection(interval=hours))
    home.assert_holds(landed)
    for column in ("shop", "nosuch"):
        home.declare(text=text.replace('suite="orders",', f'suite="orders", interval="{column}",'))
        with pytest.raises(
            SetupError, match=f"interval='{column}', which is no column of warehouse.orders with"
        ):
            planned(home, Selection(interval=hours))
    home.declare(text=text.replace('suite="orders",', 'suite="orders", interval="at",'))
    nowhere = (base - dt.timedelta(days=2), base - dt.timedelta(days=1))
    nothing = again(home, Selection(interval=nowhere))
    assert nothing.receipt is None
    assert "nothing to do" in next(nothing.plan.lines())


def hours(first: float, end: float) -> Selection:
    """Return the interval of so many hours after the first order."""
    base = dt.datetime.fromtimestamp(START / 1e6, dt.UTC)
    return Selection(interval=(base + dt.timedelta(hours=first), base + dt.timedelta(hours=end)))


def test_an_interval_finds_held_rows_too_and_todays_suite_delivers_them(home: Home) -> None:
    text = DECLARATION.format(name="orders", max_files=1, share=1.0)
    home.declare(text=text.replace('suite="orders",', 'suite="orders", interval="at",'))
    wrong = rule("column_values_to_be_between", "id is small", "warning", column="id", max_value=7)
    home.judge(*RULES, wrong)
    landed = home.land("orders/0.jsonl", orders(0, 8, negative=[1, 2]))
    landed += home.land("orders/1.jsonl", orders(8, 8), ["{broken"])
    home.run()
    assert home.ask("SELECT max(id) FROM warehouse.orders") == [(7,)]
    home.judge(*RULES)
    said = planned(home, hours(8, 16))
    assert [one.batch_id for one in said.deliveries] == [1]
    assert (said.rows, said.held, said.besides) == (0, 9, {"row": 1}), "what is malformed has no time"
    again(home, hours(8, 16))
    home.assert_holds(landed)
    discard(home.dsn, "orders", [held_rows(home.dsn, "orders", Rows())[0].quarantine_id], who="t", why="t")
    for first, besides in ((1, 7), (2, 7)):  # one of the two was discarded
        said = planned(home, hours(first, first + 1))
        assert [one.batch_id for one in said.deliveries] == [0]
        assert said.besides == {"row": besides}
    home.assert_clean()


def test_rows_that_todays_transform_moves_over_an_intervals_edges_are_there_once(
    histories: Histories,
) -> None:
    home, _ = histories.begin(four_batches)
    records = "SELECT count(*), count(DISTINCT id), sum(id) FROM warehouse.orders"
    before = home.ask(records)
    text = (home.root / "my pipelines" / "orders.py").read_text()
    later = """    from pyspark.sql.functions import expr
    df = df.withColumn("at", df.at + expr("INTERVAL 5 HOURS"))
    return df.join("""
    text = text.replace("    return df.join(", later).replace(
        'suite="orders",', 'suite="orders", interval="at",'
    )
    home.declare(text=text)
    base = dt.datetime.fromtimestamp(START / 1e6, dt.UTC)
    interval = (base + dt.timedelta(hours=9), base + dt.timedelta(hours=23))
    done = again(home, Selection(interval=interval))
    assert [one.batch_id for one in done.plan.deliveries] == [1, 2]
    assert home.ask(records) == before
    within = "SELECT id FROM warehouse.orders WHERE at >= %s AND at < %s ORDER BY id"
    assert home.ask(within, *interval) == [(8,), *((number,) for number in range(10, 17))]
    home.assert_clean()


@pytest.mark.slow
def test_an_interval_by_paths_names_every_delivery_that_read_such_a_file(home: Home) -> None:
    text = DECLARATION.format(name="orders", max_files=1, share=1.0)
    by_day = """suite="orders", interval="dt={interval:%Y-%m-%d}","""
    home.declare(text=text.replace('suite="orders",', by_day))
    home.judge(*RULES)
    landed = Landed()
    for number in range(4):
        landed += home.land(f"orders/dt=2024-{2 + number % 2}-1/{number}.jsonl", orders(number * 8, 8))
    landed += home.land("orders/dt=__HIVE_DEFAULT_PARTITION__/4.jsonl", orders(40, 8))
    home.run()
    landed += home.land("orders/dt=2024-03-01/later.jsonl", orders(80, 8))  # left to the stream
    day = (dt.datetime(2024, 3, 1, 6, tzinfo=dt.UTC), dt.datetime(2024, 3, 2, tzinfo=dt.UTC))
    said = planned(home, Selection(interval=day))
    assert [one.batch_id for one in said.deliveries] == [1, 3]
    assert said.besides == {"file": 0}
    assert said.undated == ["orders/dt=__HIVE_DEFAULT_PARTITION__/4.jsonl"]
    assert "1 delivered file in no interval" in next(said.lines())
    again(home, Selection(interval=day))
    home.run()
    home.assert_holds(landed)
    home.assert_clean()


def test_of_two_replays_of_one_batch_one_takes_place(histories: Histories) -> None:
    home, landed = histories.begin(four_batches)
    said = planned(home, Selection(batches=(1, 1)))
    pipeline = home.pipeline()
    replay(home.place, pipeline, said, who="one", spark=home.spark)
    before = home.history()
    with pytest.raises(NeedsPerson, match="1 of the 1 delivery of the plan are no longer live"):
        replay(home.place, pipeline, said, who="two", spark=home.spark)
    found = home.history()
    assert {**found, "attempt": 0, "objects": 0} == {**before, "attempt": 0, "objects": 0}
    home.assert_holds(landed)
    home.assert_clean()


def test_a_replay_and_the_stream_do_not_disturb_each_other(histories: Histories) -> None:
    home, landed = histories.begin(four_batches)
    landed += home.land("orders/4.jsonl", orders(32, 8))
    landed += home.land("orders/5.jsonl", orders(40, 8))
    replays: list[Replayed] = []

    def meanwhile(receipt: Receipt) -> None:
        replays.append(again(home, Selection(batches=(receipt.batch_id - 4, receipt.batch_id - 4))))

    done = home.run(progress=meanwhile)
    assert (done.batches, len(replays)) == (2, 2)
    home.assert_holds(landed)
    home.assert_clean()


def test_the_stream_may_deliver_while_a_replay_is_staged(histories: Histories) -> None:
    home, landed = histories.begin(four_batches)
    landed += home.land("orders/4.jsonl", orders(32, 8))
    with once_at(Step.POINTER_DRAFTED, home.run):
        again(home, Selection(batches=(0, 3)))
    home.assert_holds(landed)
    home.assert_clean()
    chain = home.ask("SELECT delivery_id, manifest FROM sluice.delivery ORDER BY commit_seq")
    named = [json.loads(home.place.lake.read_text(uri))["previous"] for _, uri in chain]
    assert named == [None, *(number for number, _ in chain[:-1])]  # by which recover finds what was lost


def test_rows_of_an_interval_that_the_stream_delivers_while_it_is_replayed_are_kept_once(
    histories: Histories,
) -> None:
    home, landed = histories.begin(four_batches)
    text = (home.root / "my pipelines" / "orders.py").read_text()
    home.declare(text=text.replace('suite="orders",', 'suite="orders", interval="at",'))
    late = [replace(one, id=one.id + 100) for one in orders(8, 4, negative=[9]) if one.id is not None]
    landed += home.land("orders/4.jsonl", late)
    with once_at(Step.POINTER_DRAFTED, home.run):
        done = again(home, hours(8, 12))
    assert [one.batch_id for one in done.plan.deliveries] == [1]
    home.assert_holds(landed)
    home.assert_clean()
    rows = home.ask("SELECT _batch_id, count(*) FROM warehouse.orders WHERE id >= 100 GROUP BY 1")
    assert rows == [(4, 3)], "by the stream's delivery, which the replay left alone"
    again(home, hours(8, 12))
    home.assert_holds(landed)
    home.assert_clean()
    assert home.ask("SELECT count(*) FROM sluice.delivery WHERE live") == [(4,)]


@pytest.mark.parametrize(
    "steps", [IN_THE_SWAP[::5], pytest.param(IN_THE_SWAP, marks=pytest.mark.slow)], ids=["some", "each"]
)
def test_an_error_at_any_step_changes_nothing_and_the_next_try_replaces_all(
    histories: Histories, steps: Sequence[Step]
) -> None:
    home, landed = histories.begin(four_batches)
    for step in steps:
        with failing_at(step):
            again(home, Selection(batches=(0, 1)))
        home.assert_holds(landed)
        assert home.ask("SELECT count(*) FROM sluice.delivery WHERE live") == [(4,)], step
    again(home, Selection(batches=(0, 1)))
    home.assert_holds(landed)
    assert home.ask("SELECT count(*) FROM sluice.delivery WHERE live") == [(3,)]


def replaced_by(home: Home, *ids: int) -> None:
    """Both sinks have exactly these orders."""
    eyes = home.reader()
    paths = eyes.files("orders")
    assert sorted(row[0] for row in eyes.in_postgres(system=()).elements()) == list(ids)
    assert sorted(row[0] for row in eyes.rows_in(paths, ["id"]).elements()) == list(ids)
    home.assert_clean()


def delivered(home: Home) -> list[int]:
    """Return the numbers of all deliveries, in the order of their commits."""
    return [number for (number,) in home.ask("SELECT delivery_id FROM sluice.delivery ORDER BY commit_seq")]


def three_replaced(home: Home) -> list[int]:
    """Three batches of a replace sink; the numbers of their deliveries."""
    text = DECLARATION.format(name="orders", max_files=1, share=1.0)
    text = text.replace('suite="orders",', 'suite="orders", interval="at",')
    home.declare(text=text.replace("Append", "Replace"))
    for number in range(3):
        home.land(f"orders/{number}.jsonl", orders(number * 4, 4, negative=[number * 4]))
    home.run()
    return delivered(home)


def test_of_a_replace_sink_the_newest_delivery_alone_can_be_replayed(histories: Histories) -> None:
    home, numbers = histories.begin(three_replaced)
    replaced_by(home, 9, 10, 11)
    for older in (Selection(deliveries=((numbers[0], numbers[0]),)), Selection(batches=(0, 2))):
        with pytest.raises(SetupError, match=f"only the newest, delivery {numbers[2]}, is in force"):
            again(home, older)
    assert planned(home, hours(0, 1)).numbers == [], "what it held is no longer in force"
    assert planned(home, hours(0, 9)).numbers == numbers[2:], "of which it held a row"
    home.judge()
    again(home, Selection(deliveries=((numbers[2], numbers[2]),)))
    replaced_by(home, 8, 9, 10, 11)
    home.land("orders/3.jsonl", orders(12, 4))
    home.run()
    replaced_by(home, 12, 13, 14, 15)


@pytest.mark.parametrize("was_empty", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_replay_into_a_replace_sink_gives_way_to_the_stream(histories: Histories, was_empty: bool) -> None:
    home, numbers = histories.begin(three_replaced)
    if was_empty:
        home.land("orders/3.jsonl", orders(12, 1, negative=[12]))
        home.run()
        numbers = delivered(home)
    home.land("orders/4.jsonl", orders(20, 4))
    gave_way = "replaced all before it while the replay was under way"
    with once_at(Step.POINTER_DRAFTED, home.run), pytest.raises(NeedsPerson, match=gave_way):
        again(home, Selection(deliveries=((numbers[-1], numbers[-1]),)))
    replaced_by(home, 20, 21, 22, 23)


def test_the_command_says_its_plan_first_and_can_stop_there(histories: Histories) -> None:
    home, landed = histories.begin(four_batches)
    before = home.history()
    said = home.sluice_here("replay", "orders", "--batches", "1..2", "--plan")
    assert said.returncode == 0, said.stderr
    assert "2 deliveries" in said.stdout
    assert "14 rows of PostgreSQL" in said.stdout
    assert home.history() == before
    wrong = home.sluice("replay", "orders", "--batches", "2..1")
    assert wrong.returncode == 2
    assert "--batches 1..2" in wrong.stderr
    done = home.sluice_here("replay", "orders", "--batches", "1..2", "--why", "the vendor's file was bad")
    assert done.returncode == 0, done.stderr
    assert "14 rows of PostgreSQL" in done.stderr
    assert re.search(r"replaced \d+\.\.\d+: 14 rows delivered \(before: 14\)", done.stdout)
    home.assert_holds(landed)
    kept = home.ask("SELECT why, plan ->> 'rows', outcome FROM sluice.run WHERE kind = 'replay'")
    assert kept == [("the vendor's file was bad", "14", "done")]


def test_a_run_a_streams_batches_and_an_interval_name_deliveries_as_well(histories: Histories) -> None:
    home, _ = histories.begin(four_batches)
    text = (home.root / "my pipelines" / "orders.py").read_text()
    home.declare(text=text.replace('suite="orders",', 'suite="orders", interval="at",'))
    [(run, stream)] = home.ask("SELECT DISTINCT run_id::text, stream_id::text FROM sluice.delivery")

    def named(*words: str) -> list[int]:
        said = home.sluice_here("replay", "orders", "--plan", "--json", *words)
        assert said.returncode == 0, said.stderr
        return [one["batch_id"] for one in json.loads(said.stdout)["deliveries"]]

    assert named("--run", run) == [0, 1, 2, 3]
    assert named("--batches", "2..3", "--stream", stream) == [2, 3]
    hours = [str(np.datetime64(START, "us") + np.timedelta64(hour, "h")) + "Z" for hour in (7, 9)]
    assert named("--interval", *hours) == [0, 1]
    for wrong in (
        ("--run", run, "--batches", "2..3"),
        ("--run", run, "--stream", stream),
        ("--run", "yesterday"),
    ):
        assert home.sluice("replay", "orders", *wrong).returncode == 2


@pytest.mark.slow
def test_the_table_of_before_a_replay_stays_readable(histories: Histories) -> None:
    home, _ = histories.begin(four_batches)
    catalog = open_catalog(home.place)

    def rows(snapshot: int | None = None) -> Counter[Any]:
        scan = catalog.load_table("warehouse.orders").scan(snapshot_id=snapshot)
        return Counter(tuple(one.values()) for one in scan.to_arrow().to_pylist())

    before, snapshot = rows(), newest(home)
    home.judge(RULES[0], RULES[1], HELD_CITY)
    again(home, Selection(batches=(1, 2)))
    sweep(home.place, home.pipeline())
    assert rows(snapshot) == before
    assert newest(home) != snapshot
    assert rows() != before


def newest(home: Home) -> int:
    """Return the snapshot that the last delivery made, as a person finds it."""
    [(snapshot,)] = home.ask("SELECT snapshot_id FROM sluice.delivery ORDER BY commit_seq DESC LIMIT 1")
    return int(snapshot)
