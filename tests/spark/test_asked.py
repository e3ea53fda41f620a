"""A replay that Airflow asks for: what it must not guess is asked in the words of the form, and taken from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from subprocess import CompletedProcess
from typing import Any

import pytest

from etl.airflow.command import tries
from etl.airflow.command.request import run_requested
from etl.airflow.task_try import TaskTry
from etl.common.errors import InputsChanged, NeedsPerson, SetupError
from etl.ledger.quarantine import RowSelection, held_rows
from etl.pipeline import Airflow
from etl.runs.follow import RunControl
from etl.runs.replay.plan import Selection as PlanChosen
from etl.runs.replay.plan import plan
from etl.runs.replay.release import release
from etl.runs.replay.replay import replay
from etl.runs.summary import Summary
from tests.support.data.orders import DECLARATION, RULES, START, Landed, orders
from tests.support.home import Home

JANUARY = {"interval_start": "2020-01-01T00:00:00+00:00", "interval_end": "2020-02-01T00:00:00+00:00"}
FORM = 'trigger orders_replays with "Replay deliveries" {0} and '
COMMAND = "or `sluice replay orders --deliveries {0} "
INTERVAL = (
    'trigger orders_replays with "Replay an interval: its start" 2020-01-01T00:00:00+00:00,'
    ' "Replay an interval: its end" 2020-02-01T00:00:00+00:00 and "Take changed inputs" ticked'
)
AGAIN = 'or create the backfill again with that ("Override parameters on existing runs" ticked)'


def asked(run_type: str = "manual", **more: Any) -> TaskTry:
    run = {"dag_id": "orders", "dag_run_id": "r", "task_id": "run", "try_number": 1, "clear_number": 0}
    return TaskTry(**{**run, **more}, run_type=run_type)


def refused(home: Home, one: TaskTry, kind: type[Exception]) -> str:
    """Run what is refused, and return the remedy."""
    before = home.history()
    with pytest.raises(kind) as caught:
        run_requested(home.place, home.pipeline(), one, lambda _: None, lambda _: None, RunControl())
    assert home.history() == before
    return str(caught.value.remedy)  # type: ignore[attr-defined]


def released_and_changed(home: Home) -> tuple[Landed, int]:
    """Make a delivery of which a row was released since, and whose file was written again; return its number too."""
    text = DECLARATION.format(name="orders", max_files=1, share=1.0)
    home.declare(text=text.replace('suite="orders",', 'suite="orders", interval="at",'))
    landed = home.land("orders/0.jsonl", orders(0, 8, negative=[1]))
    [number] = home.run().deliveries
    home.judge(*RULES[1:])
    rows = held_rows(home.dsn, "orders", RowSelection(delivery=number))
    release(home.place, home.pipeline(), rows, {}, who="ada", why="asked", spark=home.spark)
    os.utime(home.landing / "orders/0.jsonl", (START / 1e6, START / 1e6))
    return landed, number


def test_a_stopped_replay_says_what_to_fill_in_and_the_form_then_decides(home: Home) -> None:
    landed, number = released_and_changed(home)
    named = asked(deliveries=str(number))
    form, command = FORM.format(number), COMMAND.format(number)
    changed = refused(home, named, InputsChanged)
    assert form + '"Take changed inputs" ticked, ' + command + "--accept-changed`" in changed
    backfill = asked("backfill", **JANUARY)
    stopped = refused(home, backfill, InputsChanged)
    assert INTERVAL in stopped
    assert AGAIN in stopped

    rows = refused(home, asked(deliveries=str(number), accept_changed=True), NeedsPerson)
    assert rows.startswith(form + '"Rows released since" keep,')
    assert command + "--releases keep|drop`" in rows
    assert AGAIN in refused(home, asked("backfill", **JANUARY, accept_changed=True), NeedsPerson)

    home.judge(*RULES)
    both = asked("backfill", **JANUARY, accept_changed=True, releases="drop")
    done = home.sluice_here("run", "orders", "--json", "--airflow", given=both.json())
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["replaced"]) == 2
    home.assert_holds(landed)
    home.assert_clean()
    kept = "SELECT outcome, plan ->> 'rows' FROM sluice.run WHERE kind = 'replay' ORDER BY started_at"
    ends = ("InputsChanged", "InputsChanged", "NeedsPerson", "NeedsPerson", "done")
    assert home.ask(kept) == [(end, "7") for end in ends], "each with its plan"


def test_fewer_rows_are_delivered_where_the_form_says_so_and_why(home: Home) -> None:
    text = DECLARATION.format(name="orders", max_files=1, share=1.0).replace("max_fewer_share=1.0,", "")
    home.declare(text=text)
    landed = home.land("orders/0.jsonl", orders(0, 8))
    [number] = home.run().deliveries
    home.declare(text=text.replace("df.join(", 'df.where("id < 4").join('))

    def tried(**form: Any) -> CompletedProcess[str]:
        given = asked(deliveries=str(number), **form).json()
        return home.sluice_here("run", "orders", "--json", "--airflow", given=given)

    stopped = tried()
    assert stopped.returncode == 4, stopped.stderr
    assert "would deliver 4 rows in place of 8 (50.00% fewer)" in stopped.stderr
    assert FORM.format(number) + '"Deliver fewer rows" ticked, and "Why" filled in, ' in stopped.stderr
    assert COMMAND.format(number) + "--fewer` with the reason in --why" in stopped.stderr
    home.assert_holds(landed)
    unexplained = asked(deliveries=str(number), fewer=True)
    assert refused(home, unexplained, SetupError) == 'the same form, with "Why" filled in'
    done = tried(fewer=True, why="the other half is not ours")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["replaced"] == [number]
    landed.orders = landed.orders[:4]
    home.assert_rows(landed)
    kept = "SELECT outcome, why FROM sluice.run WHERE kind = 'replay' ORDER BY started_at"
    by_itself = "manual run r of orders"
    assert home.ask(kept) == [("FewerRows", by_itself), ("done", "the other half is not ours")]


def test_a_backfill_with_nothing_to_do_is_on_record_and_tells_what_nobody_has_told(home: Home) -> None:
    text = DECLARATION.format(name="orders", max_files=1, share=1.0)
    home.declare(text=text.replace('suite="orders",', 'suite="orders", interval="at",'))
    later = {"interval_start": "2021-01-01T00:00:00+00:00", "interval_end": "2021-02-01T00:00:00+00:00"}

    def backfilled() -> Summary:
        say: list[str] = []
        return run_requested(
            home.place, home.pipeline(), asked("backfill", **later), lambda _: None, say.append, RunControl()
        )

    assert backfilled().run == ""
    assert home.ask("SELECT count(*) FROM sluice.pipeline") == [(0,)], "it has delivered nothing"
    home.land("orders/0.jsonl", orders(0, 8))
    [number] = home.run().deliveries
    done = backfilled()
    assert (done.batches, done.unreported) == (0, [number])
    kept = "SELECT run_id::text, outcome, jsonb_array_length(plan -> 'deliveries') FROM sluice.run WHERE kind = 'replay'"
    assert home.ask(kept) == [(done.run, "done", 0)]
    assert home.ask("SELECT run_id::text, outcome FROM sluice.airflow_try") == [(done.run, "done")]


def test_what_a_try_had_done_before_it_died_is_not_done_again_and_is_told_of_by_the_next(home: Home) -> None:
    text = DECLARATION.format(name="orders", max_files=1, share=1.0)
    home.declare(
        text=text.replace("Append()", 'Append(partition_by=hour("at"))').replace("Append,", "Append, hour,")
    )
    landed = home.land("orders/0.jsonl", orders(0, 8, negative=[1]))
    [number] = home.run().deliveries

    def tried(run: str, attempt: int, **form: str) -> TaskTry:
        return asked(dag_id="orders_replays", dag_run_id=run, try_number=attempt, beside=True, **form)

    def died(one: TaskTry, act: Callable[[Callable[[str], None]], object]) -> None:
        with tries.recorded(home.dsn, "orders", one) as became:
            act(became)
            raise KeyboardInterrupt

    def next_one(one: TaskTry) -> Summary:
        return run_requested(home.place, home.pipeline(), one, lambda _: None, lambda _: None, RunControl())

    how: dict[str, Any] = {"who": "ada", "spark": home.spark}
    planned = plan(home.place, home.pipeline(), PlanChosen(deliveries=((number, number),)), spark=home.spark)
    form = {"deliveries": str(number)}
    with pytest.raises(KeyboardInterrupt):
        died(
            tried("replay", 1, **form),
            lambda became: replay(home.place, home.pipeline(), planned, began=became, **how),
        )
    [(delivery, run)] = home.ask("SELECT delivery_id, run_id::text FROM sluice.delivery WHERE live")
    again = next_one(tried("replay", 2, **form))
    assert (again.run, again.batches, again.replaced, again.unreported) == (run, 0, [number], [delivery])
    hours = [f"2020-01-01T0{hour}:00:00" for hour in range(8)]
    assert sorted(again.partitions) == [hours[0], *hours[2:]]

    home.judge(*RULES[1:])
    [held] = held_rows(home.dsn, "orders", RowSelection(status="held"))
    form = {"release": str(held.quarantine_id), "why": "asked"}
    another = {"corrections": '{"quarantine_id": 999, "row": {"amount": 1}}'}
    with pytest.raises(SetupError, match='"Release held rows" does not name: 999'):
        next_one(tried("release", 1, **form, **another))
    with pytest.raises(KeyboardInterrupt):
        died(
            tried("release", 1, **form),
            lambda became: release(home.place, home.pipeline(), [held], {}, why="asked", began=became, **how),
        )
    [(delivery,)] = home.ask("SELECT delivery_id FROM sluice.delivery WHERE kind = 'release'")
    again = next_one(tried("release", 2, **form))
    assert (again.batches, again.released, again.unreported) == (0, [held.quarantine_id], [delivery])
    assert again.partitions == [hours[1]]
    landed.released += [one for one in landed.orders if one.reasons]
    home.judge(*RULES)
    home.assert_holds(landed)
    home.assert_clean()


def test_a_run_of_the_pipelines_own_dag_releases_nothing_for_its_right_is_another(home: Home) -> None:
    home.declare(max_files=1)
    landed = home.land("orders/0.jsonl", orders(0, 8, negative=[1]))
    home.run()
    home.judge(*RULES[1:])
    [held] = held_rows(home.dsn, "orders", RowSelection(status="held"))
    remedy = refused(home, asked(release=str(held.quarantine_id), why="a refund"), SetupError)
    assert remedy.startswith('trigger orders_replays with "Release held rows" filled in, ')
    named = replace(home.pipeline(), airflow=Airflow(deciders=("ada", "bob")))
    for who in ("eve", None):  # who may trigger replays, and is no decider
        given = asked(release=str(held.quarantine_id), why="a refund", beside=True, who=who)
        with pytest.raises(SetupError, match=r"only ada, bob may\. Nothing was changed"):
            run_requested(home.place, named, given, lambda _: None, lambda _: None, RunControl())
    assert [one.quarantine_id for one in held_rows(home.dsn, "orders", RowSelection(status="held"))] == [
        held.quarantine_id
    ]
    assert home.ask("SELECT DISTINCT outcome FROM sluice.airflow_try") == [("SetupError",)]
    home.judge(*RULES)
    home.assert_holds(landed)


def test_the_form_may_ask_for_a_look_into_closed_folders(home: Home) -> None:
    text = "from datetime import timedelta\n" + DECLARATION.format(name="orders", max_files=9, share=1.0)
    for before, after in {
        "max_files=9": "open_for=timedelta(days=3)",
        'suite="orders",': 'suite="orders", interval="dt={interval:%Y-%m-%d}",',
    }.items():
        text = text.replace(before, after)
    home.declare(text=text)
    landed = home.land("orders/dt=2026-01-01/0.jsonl", orders(0, 8))
    home.run()
    home.run()  # which finds that nothing is unread
    late = home.land("orders/dt=2026-01-01/late.jsonl", orders(8, 3))
    for given, holds in ((asked(), landed), (asked(dag_run_id="s", closed=True), landed + late)):
        done = home.sluice_here("run", "orders", "--airflow", given=given.json())
        assert done.returncode == 0, done.stderr
        home.assert_holds(holds)


def test_a_form_that_makes_no_sense_is_refused(home: Home) -> None:
    home.declare()
    wrong = {
        "names nothing to replay": asked(accept_changed=True),
        "asks for a replay and names rows": asked(release="1", releases="keep", beside=True),
        "releases some is not known": asked(deliveries="1", releases="some"),
        "names deliveries and an interval": asked(deliveries="1", start="2020-01-01"),
        '"Look into closed folders" ticked, and asks': asked(deliveries="1", closed=True),
        "Look into closed folders": asked("backfill", **JANUARY, closed=True),
        "names one end of an interval": asked(end="2020-01-01"),
        "is empty": asked(start="2020-01-02", end="2020-01-01"),
        "interval 1 May": asked(start="1 May", end="2020-01-01"),
        "The form of orders_replays asks for nothing": asked(dag_id="orders_replays", beside=True),
    }
    home.land("orders/0.jsonl", orders(0, 8))
    home.run()
    for seen, one in wrong.items():
        with pytest.raises(SetupError, match=seen):
            run_requested(home.place, home.pipeline(), one, lambda _: None, lambda _: None, RunControl())
