"""Held rows have one way back: judged again, corrected or not, they are delivered exactly once, or held once more."""

from __future__ import annotations

import datetime as dt
import json
import re
import threading
from dataclasses import replace
from subprocess import CompletedProcess
from typing import Any

import pytest

from etl.airflow.command import tries
from etl.airflow.task_try import TaskTry
from etl.common.errors import ContractBroken, NeedsPerson, SetupError, TableRefused, TooManyReleases
from etl.common.steps import Step
from etl.delivery.batch import Receipt
from etl.ledger.quarantine import RowSelection, discard, held_rows
from etl.runs.replay.plan import Selection as Batches
from etl.runs.replay.plan import plan
from etl.runs.replay.release import release
from etl.runs.replay.replay import replay
from tests.support.data.orders import CITIES, NEGATIVE, NO_ID, RULES, orders, rule
from tests.support.histories import Histories
from tests.support.home import Home, once_at

COUNT = "SELECT count(*) FROM warehouse.orders"


def two_batches(home: Home) -> None:
    """Two files, one a batch: three orders of each are negative, and one record is malformed."""
    home.declare(max_files=1)
    for number in range(2):
        start = number * 10
        home.land(
            f"orders/{number}.jsonl", orders(start, 10, negative=[start, start + 1, start + 2]), ["{broken"]
        )
    home.run()


@pytest.fixture
def home(histories: Histories) -> Home:
    """Return a home that has these two batches."""
    found, _ = histories.begin(two_batches)
    return found


def let_out(home: Home, chosen: RowSelection, corrections: dict[int, Any] | None = None) -> list[Receipt]:
    held = held_rows(home.dsn, "orders", chosen)
    return release(
        home.place, home.pipeline(), held, corrections or {}, who="tests", why="looked at", spark=home.spark
    )


def ids(home: Home, **chosen: Any) -> tuple[int, ...]:
    return tuple(one.quarantine_id for one in held_rows(home.dsn, "orders", RowSelection(**chosen)))


def assert_clean(home: Home) -> None:
    home.assert_one_history()
    home.assert_clean()


def test_rows_pass_a_changed_suite_and_are_delivered_as_deliveries_that_name_their_batches(
    home: Home,
) -> None:
    before = home.ask("SELECT delivery_id FROM sluice.delivery ORDER BY 1")
    home.judge(*RULES[1:], rule("table_row_count_to_be_between", "enough rows", "warning", min_value=5))
    done = let_out(home, RowSelection(reason=NEGATIVE))
    assert [(one.delivered, one.quarantined) for one in done] == [(3, 0), (3, 0)]
    assert home.ask(COUNT) == [(20,)]
    assert home.ask("SELECT released_from FROM sluice.delivery WHERE kind = 'release' ORDER BY 1") == before
    state = "SELECT DISTINCT q.state FROM sluice.quality q JOIN sluice.delivery USING (delivery_id) WHERE kind = 'release'"
    assert ("flawed",) not in home.ask(state), "a rule about a whole batch does not apply"
    kept = home.ask(
        "SELECT DISTINCT status, decided_by, why FROM sluice.quarantine WHERE %s = ANY(reasons)", NEGATIVE
    )
    assert kept == [("released", "tests", "looked at")]
    moment = "SELECT DISTINCT at = timestamptz '2020-01-01' + id * interval '3600000001 microseconds' FROM warehouse.orders"
    assert home.ask(moment) == [(True,)], "each value came back exactly"
    assert_clean(home)


def test_a_second_release_does_nothing(home: Home) -> None:
    home.judge(*RULES[1:])
    rows = held_rows(home.dsn, "orders", RowSelection(reason=NEGATIVE))
    options: dict[str, Any] = {"who": "tests", "why": "again", "spark": home.spark}
    release(home.place, home.pipeline(), rows, {}, **options)
    with pytest.raises(NeedsPerson, match="3 of the 3 rows to be released are no longer held"):
        release(home.place, home.pipeline(), rows, {}, **options)
    assert_as_many_as_an_hour_may_have(home, 2)
    assert home.ask(COUNT) == [(20,)]
    assert_clean(home)


def assert_as_many_as_an_hour_may_have(home: Home, most: int) -> None:
    """Assert that after so many releases one more is refused, whatever corrects it, until the first is an hour old."""
    count = "SELECT count(*) FROM sluice.run WHERE kind = 'release'"
    older = "UPDATE sluice.run SET started_at = started_at - %s::interval WHERE kind = 'release'"
    place = replace(home.place, settings=home.place.settings.model_copy(update={"releases_per_hour": most}))
    held = held_rows(home.dsn, "orders", RowSelection(reason="malformed"))
    given: dict[int, Any] = {one.quarantine_id: {"id": 1} for one in held}
    options: dict[str, Any] = {"who": "tests", "why": "too often", "spark": home.spark}
    home.ask(older, "59 minutes")
    with pytest.raises(
        TooManyReleases, match=f"orders: {most} releases of held rows since .*_PER_HOUR"
    ) as error:
        release(place, home.pipeline(), held, given, **options)
    assert re.match(r"try again after [0-9:]{8} UTC", error.value.remedy)
    assert home.ask(count) == [(most,)], "what was refused is none"
    home.ask(older, "1 minute")
    with pytest.raises(SetupError, match="its correction lacks"):
        release(place, home.pipeline(), held, given, **options)


def test_an_interval_of_what_a_release_held_once_more_names_the_batch_it_came_of(home: Home) -> None:
    first, second, *_ = ids(home, delivery=1, reason=NEGATIVE)
    let_out(
        home,
        RowSelection(ids=(first, second)),
        {first: {"at": "2021-01-01T00:00:00Z"}, second: {"amount": 1}},
    )
    year = (dt.datetime(2021, 1, 1, tzinfo=dt.UTC), dt.datetime(2022, 1, 1, tzinfo=dt.UTC))
    said = plan(home.place, replace(home.pipeline(), interval="at"), Batches(interval=year))
    assert (said.numbers, said.besides) == ([1], {"row": 11})
    assert [one.quarantined for one in said.releases] == [1]


def test_rows_are_corrected_one_by_one_and_what_still_fails_is_held_again(home: Home) -> None:
    first = held_rows(home.dsn, "orders", RowSelection(delivery=1))
    negative = [one for one in first if one.row is not None]
    [malformed] = [one for one in first if one.row is None]
    corrections = {
        negative[0].quarantine_id: {"amount": 12.5},
        negative[1].quarantine_id: {"id": None},
        malformed.quarantine_id: {
            "id": 77,
            "shop": "B",
            "amount": 3,
            "at": "2020-02-01 10:00:00Z",
            "city": CITIES["B"],
        },
    }
    [done] = let_out(home, RowSelection(delivery=1), corrections)
    assert (done.delivered, done.quarantined) == (2, 2)
    assert done.reasons == {NEGATIVE: 2, NO_ID: 1}
    assert home.ask("SELECT amount, city FROM warehouse.orders WHERE id IN (0, 77) ORDER BY id") == [
        (12.5, "Aarhus"),
        (3.0, "Köln"),
    ]
    again = held_rows(home.dsn, "orders", RowSelection(delivery=done.delivery_id))
    assert {one.values and one.values["id"] for one in again} == {None, 2}
    assert {one.source_path for one in again} == {home.uri("orders/0.jsonl")}
    assert_clean(home)


NESTED = """
from etl.pipeline import Append, Files, Pipeline

PIPELINE = Pipeline(
    name="orders", sources=(Files("orders/*.jsonl"),), transform=lambda df: df, suite="orders", sink=Append(),
    max_quarantine_share=1.0,
    schema="id int, amount double, sizes array<double>, who struct<name string, seen timestamp>, tags map<string, int>",
)
"""


def a_nested_batch(home: Home) -> dict[str, Any]:
    """Deliver a row of nested columns, and hold two; return the delivered one as it landed."""
    home.declare(text=NESTED)
    home.judge(*RULES[:1])
    sizes, who, tags = [1, 2.50, None], {"seen": "2026-01-01 00:00Z", "name": "Åsa"}, {"a": 1, "b": None}
    landed = {"id": 1, "amount": 1, "sizes": sizes, "who": who, "tags": tags}
    held = {"id": 2, "amount": -1, "sizes": [3], "who": {}, "tags": {"b": 2}}
    home.write(
        "orders/0.jsonl", "".join(f"{line}\n" for line in (json.dumps(landed), json.dumps(held), "{broken"))
    )
    home.run()
    return landed


def test_what_is_corrected_of_a_nested_column_becomes_the_text_that_a_landed_one_becomes(
    histories: Histories,
) -> None:
    home, landed = histories.begin(a_nested_batch)
    [negative], [broken] = ids(home, reason=NEGATIVE), ids(home, reason="malformed")
    with pytest.raises(
        SetupError, match=rf'Row {negative}, column who\.seen: found "soon", wanted a timestamp'
    ):
        let_out(home, RowSelection(ids=(negative,)), {negative: {"who": {"seen": "soon"}}})
    texts = {name: json.dumps(landed[name]) for name in ("sizes", "who", "tags")}
    corrections = {negative: {"amount": 1, "sizes": landed["sizes"]}, broken: {"id": 3, "amount": 1, **texts}}
    [done] = let_out(home, RowSelection(delivery=1), corrections)
    assert done.delivered == 2
    query = "SELECT sizes, who, tags FROM warehouse.orders ORDER BY id"
    [first, second, third] = home.ask(query)
    assert third == first
    assert second == (first[0], "{}", '{"b":2}'), "what was not corrected is as it was"
    home.assert_clean()


def test_nothing_is_changed_when_nothing_would_pass(home: Home) -> None:
    before = home.ask("SELECT * FROM sluice.quarantine ORDER BY 1")
    with pytest.raises(ContractBroken, match=r"would be held again: amount is not negative \(3\)"):
        let_out(home, RowSelection(delivery=1, ids=ids(home, delivery=1, reason=NEGATIVE)))
    with pytest.raises(SetupError, match="never became rows"):
        let_out(home, RowSelection(delivery=1))
    number = ids(home, reason=NEGATIVE)[0]
    for column, other in (("at", "soon"), ("at", 1_700_000_000), ("id", 1.5), ("id", "0x10")):
        with pytest.raises(
            SetupError, match=f"Row {number}, column {column}: found {json.dumps(other)}, wanted"
        ):
            let_out(home, RowSelection(ids=(number,)), {number: {column: other}})
    with pytest.raises(SetupError, match="columns that the pipeline has not: prize"):
        let_out(home, RowSelection(ids=(number,)), {number: {"prize": 1}})
    assert home.ask("SELECT * FROM sluice.quarantine ORDER BY 1") == before
    assert_clean(home)


def test_one_row_that_does_not_fit_keeps_all_of_them_held(home: Home) -> None:
    """Rows of earlier deliveries stay held as well: the file is corrected, and the same command does it."""
    first, second = (ids(home, delivery=number, reason=NEGATIVE)[0] for number in (1, 2))
    chosen, right = RowSelection(ids=(first, second)), {"amount": 1.0}
    with pytest.raises(SetupError, match=f'Row {second}, column amount: found "four", wanted double'):
        let_out(home, chosen, {first: right, second: {"amount": "four"}})
    assert home.ask("SELECT count(*) FROM sluice.delivery") == [(2,)]
    [broken] = ids(home, delivery=2, reason="malformed")
    some = {"id": 77, "amount": 3, "at": "2020-02-01 10:00:00Z"}
    with pytest.raises(
        SetupError, match=f"Row {broken} never was a row, and its correction lacks shop, city"
    ):
        let_out(home, RowSelection(ids=(first, broken)), {first: right, broken: some})
    assert home.ask("SELECT count(*) FROM sluice.delivery") == [(2,)]
    done = let_out(home, chosen, {first: right, second: right})
    assert [one.delivered for one in done] == [1, 1]
    assert_clean(home)


def test_rows_are_released_into_the_table_that_has_the_others_or_not_at_all(home: Home) -> None:
    home.judge(*RULES[1:])
    text = (home.root / "my pipelines" / "orders.py").read_text()
    home.declare(text=text.replace("sink=Append()", 'sink=Append(table="warehouse.elsewhere")'))
    for refused in (lambda: let_out(home, RowSelection(reason=NEGATIVE)), home.assert_clean):
        with pytest.raises(
            TableRefused, match=r"delivered to warehouse\.orders; its sink now names warehouse\.elsewhere"
        ):
            refused()
    assert home.ask("SELECT to_regclass('warehouse.elsewhere')::text") == [(None,)]
    home.declare(text=text)
    assert_clean(home)


def test_where_one_delivery_holds_nothing_that_passes_the_others_rows_are_released(home: Home) -> None:
    first, second = (ids(home, delivery=number, reason=NEGATIVE)[0] for number in (1, 2))
    told: list[Receipt] = []
    held = held_rows(home.dsn, "orders", RowSelection(ids=(first, second)))
    options: dict[str, Any] = {
        "who": "tests",
        "why": "corrected",
        "spark": home.spark,
        "progress": told.append,
    }
    stopped = (
        r"rows of delivery 1 would be held again: .* \(1\). They stay held; .* released, by deliveries \d+"
    )
    with pytest.raises(ContractBroken, match=stopped):
        release(home.place, home.pipeline(), held, {second: {"amount": 1}}, **options)
    assert [(one.delivered, one.quarantined) for one in told] == [(1, 0)]
    assert home.ask(COUNT) == [(15,)]
    assert first in ids(home, reason=NEGATIVE)
    assert second not in ids(home, reason=NEGATIVE)
    assert_clean(home)


@pytest.mark.slow
def test_a_replay_never_takes_a_release_for_a_batch(home: Home) -> None:
    """Named by its stream or by an interval, it leads to the batch that had held its rows first."""
    first, second = ids(home, delivery=1, reason=NEGATIVE)[:2]
    [let] = let_out(home, RowSelection(ids=(first, second)), {first: {"amount": 1}})
    held_again = ids(home, delivery=let.delivery_id)[0]
    let_out(home, RowSelection(ids=(held_again,)), {held_again: {"amount": 2.125}})
    [(stream,)] = home.ask(
        "SELECT stream_id::text FROM sluice.delivery WHERE delivery_id = %s", let.delivery_id
    )
    with pytest.raises(
        SetupError, match=r"none of batches 0 to 0 .*\n.*what was released goes with what held it"
    ):
        plan(home.place, home.pipeline(), Batches(batches=(0, 0), stream=stream))

    text = (home.root / "my pipelines" / "orders.py").read_text()
    home.declare(text=text.replace('suite="orders",', 'suite="orders", interval="at",'))
    [(moment,)] = home.ask("SELECT at FROM warehouse.orders WHERE amount = 2.125")
    said = plan(home.place, home.pipeline(), Batches(interval=(moment, moment + dt.timedelta(minutes=1))))
    assert (said.numbers, len(said.releases), len(said.inputs)) == ([1], 2, 1)
    replay(home.place, home.pipeline(), said, who="t", releases="drop", spark=home.spark)
    assert home.ask(COUNT) == [(14,)]
    assert home.ask("SELECT count(*) FROM sluice.quarantine WHERE status = 'held'") == [(8,)]
    assert_clean(home)


def test_a_row_that_is_released_while_its_batch_is_replayed_is_not_held_once_more(home: Home) -> None:
    """The replay's plan knew nothing of it: it is refused, and the next one asks what to do."""
    number = ids(home, delivery=1, reason=NEGATIVE)[0]
    planned = plan(home.place, home.pipeline(), Batches(deliveries=((1, 1),)))

    def let_it_out() -> None:
        [row] = held_rows(home.dsn, "orders", RowSelection(ids=(number,)))
        corrected = {number: {"amount": 5.0}}
        options: dict[str, Any] = {"who": "tests", "why": "corrected", "spark": home.spark}
        release(home.place, home.pipeline(), [row], corrected, **options)

    refused = r"were released, by deliveries \d+, while the replay was under way"
    with once_at(Step.POINTER_DRAFTED, let_it_out), pytest.raises(NeedsPerson, match=refused):
        replay(home.place, home.pipeline(), planned, who="tests", spark=home.spark)
    assert home.ask("SELECT count(*) FROM sluice.delivery WHERE kind = 'replay'") == [(0,)]
    assert_clean(home)


@pytest.mark.slow
def test_a_batch_without_rows_names_the_table_as_it_was_at_its_commit(home: Home) -> None:
    """Rows are released between its draft and its commit: read by the ledger's pointer, the table has them."""
    number = ids(home, delivery=1, reason=NEGATIVE)[0]
    home.write("orders/empty.jsonl", "")
    with once_at(
        Step.POINTER_DRAFTED, lambda: let_out(home, RowSelection(ids=(number,)), {number: {"amount": 5.0}})
    ):
        home.run()
    newest = "SELECT kind, metadata_location FROM sluice.delivery ORDER BY commit_seq DESC LIMIT 1"
    [(pointer,)] = home.ask("SELECT metadata_location FROM sluice.iceberg_tables WHERE table_name = 'orders'")
    assert home.ask(newest) == [("stream", pointer)]
    assert_clean(home)


def test_of_two_releases_at_once_one_delivers(home: Home) -> None:
    home.judge(*RULES[1:])
    rows = held_rows(home.dsn, "orders", RowSelection(delivery=1, reason=NEGATIVE))
    start, outcomes = threading.Barrier(2), []

    def one() -> None:
        start.wait()
        try:
            outcomes.append(release(home.place, pipeline, rows, {}, who="t", why="t", spark=home.spark))
        except NeedsPerson as error:
            outcomes.append(error)

    pipeline = home.pipeline()
    both = [threading.Thread(target=one) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(type(one).__name__ for one in outcomes) == ["NeedsPerson", "list"]
    assert home.ask(COUNT) == [(17,)]
    assert_clean(home)


def test_a_discarded_row_stays_on_record_and_is_not_released(home: Home) -> None:
    rows = held_rows(home.dsn, "orders", RowSelection(reason=NEGATIVE))
    numbers = [one.quarantine_id for one in rows]
    assert discard(home.dsn, "orders", numbers, who="tests", why="a test of the vendor's") == 6
    with pytest.raises(NeedsPerson, match="no longer held"):
        discard(home.dsn, "orders", numbers, who="tests", why="again")
    with pytest.raises(NeedsPerson, match="no longer held"):
        release(home.place, home.pipeline(), rows, {}, who="t", why="t", spark=home.spark)
    assert home.ask("SELECT count(*) FROM sluice.quarantine WHERE status = 'discarded'") == [(6,)]
    assert_clean(home)


def test_a_replay_says_what_was_released_and_takes_it_along_when_told_to(home: Home) -> None:
    number = ids(home, delivery=1, reason=NEGATIVE)[0]
    let_out(home, RowSelection(ids=(number,)), {number: {"amount": 1}})
    said = plan(home.place, home.pipeline(), Batches(batches=(0, 0)))
    assert [one.released_from for one in said.releases] == [1]
    with pytest.raises(NeedsPerson, match="1 row that these batches had held was released since"):
        replay(home.place, home.pipeline(), said, who="t", spark=home.spark)
    done = replay(home.place, home.pipeline(), said, who="t", releases="drop", spark=home.spark).receipt
    assert done is not None
    assert (done.delivered, done.quarantined) == (7, 4)
    assert home.ask(COUNT) == [(14,)]
    assert_clean(home)


def test_a_replay_keeps_what_was_released_or_changes_nothing(home: Home) -> None:
    first, second = ids(home, delivery=1, reason=NEGATIVE)[:2]
    let_out(home, RowSelection(ids=(first, second)), {first: {"amount": 1}})
    held_again = ids(home, reason=NEGATIVE)[-1]
    let_out(home, RowSelection(ids=(held_again,)), {held_again: {"amount": 2}})
    said = plan(home.place, home.pipeline(), Batches(batches=(0, 0)))
    assert len(said.releases) == 2, "the second one let out what the first had held again"
    options: dict[str, Any] = {"who": "t", "releases": "keep", "spark": home.spark}
    home.judge(*RULES[1:])
    with pytest.raises(NeedsPerson, match=r"of 2 rows that had been released .* does not hold 2 again"):
        replay(home.place, home.pipeline(), said, **options)
    assert_clean(home)
    home.judge(*RULES)
    earlier = "UPDATE sluice.quarantine SET source_path = NULL WHERE delivery_id = %s AND row IS NOT NULL RETURNING 1"
    assert home.ask(earlier, said.numbers[0]), "an earlier version told no file of them"
    for _ in range(2):
        said = plan(home.place, home.pipeline(), Batches(batches=(0, 0)))
        replay(home.place, home.pipeline(), said, **options)
        assert home.ask(COUNT) == [(16,)]
        status = "SELECT status, count(*) FROM sluice.quarantine WHERE status <> 'superseded' GROUP BY 1 ORDER BY 1"
        assert home.ask(status) == [("held", 6), ("released", 3)]
        assert_clean(home)
    declared = (home.root / "my pipelines" / "orders.py").read_text()
    more = '.select("id", "shop", "amount", "at", "city", (F.col("id") + 1).alias("next"))'
    text = declared.replace('.select("id", "shop", "amount", "at", "city")', more)
    home.declare(text=text.replace("    return", "    from pyspark.sql import functions as F\n    return"))
    replay(home.place, home.pipeline(), plan(home.place, home.pipeline(), Batches(batches=(0, 0))), **options)
    assert home.ask(status) == [("held", 6), ("released", 3)]


def test_the_commands_lead_from_the_list_to_the_release(home: Home) -> None:
    listed = home.sluice("quarantine", "list", "orders")
    assert f"6  {NEGATIVE}" in listed.stdout
    assert "2  malformed" in listed.stdout
    assert "orders/0.jsonl" in listed.stdout
    number = ids(home, reason=NEGATIVE)[0]
    assert "sluice quarantine show orders" in listed.stdout
    shown = home.sluice("quarantine", "show", "orders", str(number))
    assert f"reasons      {NEGATIVE}" in shown.stdout

    file = home.root / "corrections.jsonl"
    exported = home.sluice("quarantine", "export", "orders", "--reason", NEGATIVE, "-o", str(file))
    assert "6 rows in" in exported.stdout, exported.stderr
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        line["row"]["amount"] = abs(line["row"]["amount"])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    vague = home.sluice("quarantine", "release", "orders", "--why", "x")
    assert vague.returncode == 2
    assert "--all" in vague.stderr
    done = home.sluice_here(
        "quarantine", "release", "orders", "--corrections", str(file), "--why", "sign was lost"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3 rows released") == 2
    gone = home.sluice("quarantine", "discard", "orders", "--all", "--why", "not records")
    assert "2 rows discarded" in gone.stdout
    assert "no row is held" in home.sluice("quarantine", "list", "orders").stdout
    assert home.ask(COUNT) == [(20,)]
    assert_clean(home)


FIXES = """
import json

def signs(raw, row):
    if row is None:  # a record that was cut before its end
        return {"id": len(raw), "shop": None, "amount": 1, "at": None, "city": None} if "again" in raw else None
    return {"amount": abs(row["amount"])}

def fails(raw, row):
    return {"amount": 1 / 0}

def no_json(raw, row):
    return {"amount": {1, 2}}
"""


def test_a_function_corrects_what_it_returns_columns_for_and_the_rest_stays_held(home: Home) -> None:
    file = home.root / "fixes.py"
    file.write_text(FIXES)

    def release(*words: str) -> CompletedProcess[str]:
        return home.sluice_here("quarantine", "release", "orders", *words, "--why", "sign was lost")

    held = ids(home)
    for function, message in {
        f"{file}:fails": "failed on row 1: ZeroDivisionError",
        f"{file}:no_json": "failed on row 1: TypeError",
        f"{file}:none": "has no function none",
        str(file): "names no function of a file",
    }.items():
        refused = release("--all", "--with", function)
        assert (refused.returncode, message in " ".join(refused.stderr.split())) == (2, True), refused.stderr
    assert ids(home) == held
    done = release("--all", "--with", f"{file}:signs")
    assert done.returncode == 0, done.stderr
    assert "6 rows corrected by" in done.stderr
    assert done.stdout.count("3 rows released") == 2
    assert ids(home) == ids(home, reason="malformed")
    assert len(ids(home)) == 2
    assert_clean(home)


def test_a_release_of_a_whole_delivery_leaves_what_never_were_rows_and_says_so(home: Home) -> None:
    home.judge(*RULES[1:])  # negative amounts are let out
    broken = ids(home, delivery=1, reason="malformed")
    done = home.sluice_here("quarantine", "release", "orders", "--delivery", "1", "--why", "known")
    assert done.returncode == 0, done.stderr
    assert "3 rows released" in done.stdout
    assert f"orders: 1 row stays held, {broken[0]}: it never became a row" in done.stderr
    assert "`sluice quarantine export orders --delivery 1 -o rows.jsonl` writes it to be" in done.stderr
    assert ids(home, delivery=1) == broken
    for named in (["--delivery", "1"], ["--id", str(broken[0])]):
        refused = home.sluice_here("quarantine", "release", "orders", *named, "--why", "known")
        assert refused.returncode == 2
        assert "1 of these never became rows" in refused.stderr
    assert_clean(home)


@pytest.mark.slow
def test_another_try_of_an_airflow_run_releases_what_the_first_did_not_come_to(home: Home) -> None:
    home.judge(*RULES[1:])
    run = {"dag_id": "orders_replays", "dag_run_id": "r", "task_id": "run", "run_type": "manual"}
    first = TaskTry(**run, try_number=1, clear_number=0, beside=True)
    rows = held_rows(home.dsn, "orders", RowSelection(delivery=1, reason=NEGATIVE))
    with tries.recorded(home.dsn, "orders", first) as became:
        release(home.place, home.pipeline(), rows, {}, who="ada", why="asked", spark=home.spark, began=became)
    numbers = ",".join(map(str, ids(home, status=None, reason=NEGATIVE)))
    second = replace(first, try_number=2, release=numbers, who="ada", why="asked")
    done = home.sluice_here("run", "orders", "--json", "--airflow", given=second.json())
    assert done.returncode == 0, done.stderr
    assert home.ask(COUNT) == [(20,)]
    query = "SELECT DISTINCT status, decided_by, why FROM sluice.quarantine WHERE %s = ANY(reasons)"
    assert home.ask(query, NEGATIVE) == [("released", "ada", "asked")]
    assert_clean(home)
    other = home.sluice_here("run", "orders", "--airflow", given=replace(second, dag_run_id="another").json())
    assert (other.returncode, "no longer held" in other.stderr) == (4, True)
