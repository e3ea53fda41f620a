"""A pipeline run by a whole Airflow: delivered exactly once, again when that is asked for, and told of."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from airflow.partition_mappers.temporal import StartOfDayMapper

from etl.airflow.api import Refused
from etl.airflow.command.trigger import RunFailed, trigger
from tests.support.airflow.in_a_batch import held_in_the_commit, wait_for_the_commit
from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.data.orders import DECLARATION, NAME, Order, orders
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(900)


def test_a_run_says_what_it_did_and_cleared_or_named_in_a_form_it_is_delivered_again(stack: Stack) -> None:
    stack.land()
    run = stack.run()
    assert stack.ended(run) == "success"
    delivery = assert_delivered(stack, run)
    delivery = clear_and_deliver_again(stack, run, delivery)
    (stack.home.landing / "orders" / f"{stack.number}.jsonl").touch()
    clear_and_be_refused(stack, run, delivery)
    replay_as_the_form_says(stack, delivery)


def assert_delivered(stack: Stack, run: str) -> int:
    """Assert that it delivered once, and that summary, log, events, ledger and alerts tell of it; return its delivery."""
    stack.assert_exactly_once()
    summary = stack.api.xcom(NAME, run, "run", "summary")
    assert (summary["batches"], summary["delivered"], summary["quarantined"]) == (1, 8, 2)
    said = "\n".join(stack.api.log(NAME, run, "run"))
    assert re.search("orders batch [0-9]+: 8 rows delivered, 2 quarantined", said)
    told = {one["uri"]: one["extra"] for one in stack.events_of(run) if one["partition_key"] is None}
    assert set(told) == {"x-sluice://orders/postgresql", "x-sluice://orders/lake"}
    assert all(extra["deliveries"] == summary["deliveries"] for extra in told.values())
    assert all(
        (extra["rows"], extra["batches"], extra["quarantined"]) == (8, 1, 2) for extra in told.values()
    )
    newest = "SELECT snapshot_id::text FROM sluice.delivery WHERE delivery_id = ANY(%s)"
    assert [(extra["snapshot_id"],) for extra in told.values()] == stack.home.ask(
        newest, summary["deliveries"]
    ) * 2
    assert_each_day_has_its_event(stack, run, "delivered", summary["deliveries"])
    assert stack.home.ask(
        "SELECT run_type, try_number, delivery_id FROM sluice.airflow_delivery WHERE dag_run_id = %s", run
    ) == [("manual", 1, *summary["deliveries"])]
    stack.alert("quarantine", "orders holds 20.00% of a run's records in quarantine, more than 15.00%")
    assert stack.mailed.wait_for(lambda text: "Subject: Sluice: orders (quarantine)" in text, PATIENCE)
    [delivery] = summary["deliveries"]
    return int(delivery)


def clear_and_deliver_again(stack: Stack, run: str, delivery: int) -> int:
    """Clear a run that has succeeded: it is delivered again in its own place; return the new delivery."""
    stack.clear(run)
    assert stack.ended(run) == "success"
    stack.assert_exactly_once()
    summary = stack.api.xcom(NAME, run, "run", "summary")
    assert summary["replaced"] == [delivery]
    assert (summary["delivered"], summary["quarantined"]) == (8, 2)
    said = "\n".join(stack.api.log(NAME, run, "run", attempt=2))
    assert re.search("8 rows of PostgreSQL and [12] Parquet file", said), "one a day"
    events = stack.call("GET", "/assets/events?order_by=-timestamp&limit=4")["asset_events"]
    of_sinks = [one["extra"] for one in events if one["partition_key"] is None][:2]
    assert {(one["action"], *one["replaced"]) for one in of_sinks} == {("replaced", delivery)}
    [again] = summary["deliveries"]
    assert_each_day_has_its_event(stack, run, "replaced", summary["deliveries"])
    return int(again)


def assert_each_day_has_its_event(stack: Stack, run: str, action: str, deliveries: list[int]) -> None:
    """Assert that the newest events of a run name the days of these deliveries' rows, as Airflow's mappers read them."""
    days = "SELECT DISTINCT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T00:00:00\"') FROM warehouse.orders"
    wanted = stack.home.ask(f"{days} WHERE _delivery_id = ANY (%s)", deliveries)
    told = {one["partition_key"]: one["extra"] for one in stack.events_of(run) if one["partition_key"]}
    assert {(day,) for day in told} == set(wanted)
    assert action in {one["action"] for one in told.values()}
    assert {StartOfDayMapper().to_downstream(day) for day in told} == {day[:10] for day in told}


def clear_and_be_refused(stack: Stack, run: str, delivery: int) -> None:
    """Clear a run whose inputs have changed: it is not delivered again, and its log says how the form asks for it."""
    stack.clear(run)
    assert stack.ended(run) == "failed"
    said = "\n".join(stack.api.log(NAME, run, "run", attempt=3))
    form = f'trigger orders_replays with "Replay deliveries" {delivery} and "Take changed inputs" ticked'
    assert form in said


def replay_as_the_form_says(stack: Stack, delivery: int) -> None:
    """Trigger a replay of a delivery whose inputs have changed: refused as mistyped, made as the form says."""
    with pytest.raises(Refused, match="deliveries"):
        stack.api.trigger(NAME, {"deliveries": "the last one"})
    run = stack.api.trigger(NAME, {"deliveries": f"{delivery}..{delivery}", "accept_changed": True})
    assert stack.ended(run) == "success"
    stack.assert_exactly_once()
    assert stack.api.xcom(NAME, run, "run", "summary")["replaced"] == [delivery]


@pytest.mark.slow
def test_a_backfill_of_the_command_line_replays_each_interval_and_brings_its_form(stack: Stack) -> None:
    """Two days of a pipeline of its own, one file a day; the stream has delivered both, and one was written again."""
    name, home = "history", stack.home
    home.land(f"{name}/1.jsonl", orders(48, 12))  # one an hour from 2020-01-03 on
    home.land(f"{name}/2.jsonl", orders(72, 12))
    text = DECLARATION.format(name=name, max_files=1, share=1.0)
    home.declare(
        name, text=text.replace('suite="orders",', 'suite="orders", interval="at", schedule="@daily",')
    )
    stack.wait_for_dag(name)
    stack.api.unpause(name)
    scheduled = until(
        lambda: next(iter(stack.api.runs(name)), ""), "its schedule's own run", patience=PATIENCE
    )
    assert stack.ended(scheduled, name) == "success"
    before = home.ask("SELECT delivery_id FROM sluice.delivery WHERE pipeline = %s ORDER BY batch_id", name)
    (home.landing / name / "2.jsonl").touch()
    days = {"from_date": "2020-01-03T00:00:00Z", "to_date": "2020-01-04T00:00:00Z"}
    asked = {**days, "dag_id": name, "max_active_runs": 1, "dag_run_conf": {"releases": "some"}}
    with pytest.raises(AssertionError, match="releases"):  # by REST, as the page in the browser asks
        stack.call("POST", "/backfills", **asked, reprocess_behavior="completed")
    words = [
        "--dag-id",
        name,
        "--from-date",
        "2020-01-03",
        "--to-date",
        "2020-01-04",
        "--max-active-runs",
        "1",
    ]
    form = ["--run-backwards", "--dag-run-conf", '{"accept_changed": true}']
    created = stack.airflow("backfill", "create", *words, "--reprocess-behavior", "completed", *form)
    assert created.returncode == 0, created.stderr
    for run in stack.backfilled(name, count=2):
        assert stack.ended(run, name) == "success"
    replaced = home.ask(
        "SELECT t.interval_start::date::text, r.delivery_id FROM sluice.airflow_delivery t"
        " JOIN sluice.replaced r ON r.superseded_by = t.delivery_id WHERE t.run_type = 'backfill'"
        " ORDER BY t.commit_seq"
    )
    assert replaced == [("2020-01-04", *before[1]), ("2020-01-03", *before[0])], "in the order asked for"
    events = stack.call("GET", "/assets/events?order_by=-timestamp&limit=4")["asset_events"]
    told = {(one["extra"]["action"], *one["extra"]["replaced"]) for one in events}
    assert told == {("replaced", *before[0]), ("replaced", *before[1])}
    home.assert_one_history(name)


@pytest.mark.slow
def test_of_two_runs_at_once_one_waits_and_its_missed_deadline_is_told(delivered: Stack) -> None:
    stack = delivered
    stack.land()
    with held_in_the_commit(stack):
        first = stack.run()
        wait_for_the_commit(stack)
        second = stack.run()
        assert stack.api.state(NAME, first) == "running"
        assert stack.api.state(NAME, second) == "queued"
        stack.alert("deadline", "orders has not ended within 0:00:20 of being queued")
    assert stack.mailed.wait_for(lambda text: "Subject: Sluice: orders (deadline)" in text, PATIENCE)
    assert [stack.ended(first), stack.ended(second)] == ["success", "success"]
    stack.assert_exactly_once()


def test_a_broken_contract_asks_a_person_under_whose_name_the_answer_is_and_the_run_goes_on(
    stack: Stack,
) -> None:
    nobody = Order(id=None)
    stack.landed += stack.home.land("orders/nobody.jsonl", [nobody, Order(id=77_777)])
    with pytest.raises(RunFailed) as waits:
        trigger(stack.api, NAME, lambda _: None)
    run = next(iter(stack.api.runs(NAME)))
    address = f"/dags/orders/runs/{quote(run, safe='')}/tasks/run/required_actions"
    assert (waits.value.exit_code, address in waits.value.remedy) == (3, True)
    stack.alert("question", address)
    asked = stack.question(run)
    hold, accept, again, leave = asked["options"]
    assert (accept, again, leave) == ("Deliver the batch as it is", "Try again", "Leave it")
    assert "1 of 2 rows break it" in asked["body"]
    assert not stack.told_by(run), "a question makes no asset event"

    stack.answer(run, hold, " ")  # Airflow's form asks for a reason, its API does not
    until(lambda: "asked again" in said(stack, run), "it asked again", patience=PATIENCE)
    stack.question(run, times=2)
    stack.answer(run, hold, "no id")
    assert stack.ended(run) == "success"
    [task] = stack.api.tasks(NAME, run)
    assert task.tries == 2
    stack.assert_exactly_once()
    decided = "SELECT decision, decided_by, why FROM sluice.stopped_batch ORDER BY stopped_at DESC LIMIT 1"
    assert stack.home.ask(decided) == [("quarantine-all", "admin", "no id")]
    outcomes = "SELECT outcome FROM sluice.airflow_try WHERE dag_run_id = %s ORDER BY try_number"
    assert stack.home.ask(outcomes, run) == [("ContractBroken",), ("done",)]


def said(stack: Stack, run: str) -> str:
    return "\n".join(stack.api.log(NAME, run, "run"))


@pytest.mark.slow
def test_what_was_decided_elsewhere_stands_and_what_is_left_fails(stack: Stack) -> None:
    stack.landed += stack.home.land("orders/nobody_either.jsonl", [Order(id=None), Order(id=77_778)])
    left = stack.run()
    stack.question(left)
    stack.answer(left, "Leave it", "tomorrow")
    assert stack.ended(left) == "failed"
    stack.alert("failed", "admin left it as it is: tomorrow")

    run = stack.run()
    stack.question(run)
    batch = stack.home.ask("SELECT max(batch_id) FROM sluice.stopped_batch WHERE pipeline = %s", NAME)[0][0]
    decided = stack.home.sluice("decide", NAME, "--batch", str(batch), "--quarantine-all", "--why", "no id")
    assert decided.returncode == 0, decided.stderr
    stack.answer(run, "Deliver the batch as it is", "too late")
    assert stack.ended(run) == "success"
    assert "was decided on meanwhile: quarantine-all, by " in said(stack, run)
    stack.assert_exactly_once()


def test_maintenance_tells_what_differs_and_cleared_when_it_is_put_right_audits_and_sweeps(
    delivered: Stack,
) -> None:
    stack, name = delivered, "sluice_maintenance"
    stack.wait_for_dag(name)
    change = f"UPDATE warehouse.{NAME} SET amount = %s WHERE id = %s RETURNING amount"
    [(row, amount)] = stack.home.ask(f"SELECT id, amount FROM warehouse.{NAME} ORDER BY id LIMIT 1")
    stack.home.ask(change, amount + 1, row)
    before_its_schedules_own = datetime.now(UTC) - timedelta(days=9)
    run = stack.api.trigger(name, run_after=before_its_schedules_own)
    stack.api.unpause(name)
    stack.ended(run, name)
    stack.api.pause(name)  # its schedule's own run would audit and sweep all pipelines once more
    stack.home.ask(change, amount, row)
    assert maintained(stack, run) == ("failed", "upstream_failed")
    stack.alert("failed", "audit_orders failed")
    stack.clear(run, name, only_failed=True)
    stack.api.unpause(name)
    stack.ended(run, name)
    stack.api.pause(name)
    assert maintained(stack, run) == ("success", "success")


def maintained(stack: Stack, run: str) -> tuple[str | None, str | None]:
    """Return how the audit and the sweep of the pipeline ended."""
    states = {task.task: task.state for task in stack.api.tasks("sluice_maintenance", run)}
    return states["audit_orders"], states["sweep_orders"]
