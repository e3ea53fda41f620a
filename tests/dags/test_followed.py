"""A pipeline that says `follow=True` is kept up by a whole Airflow, and ends cleanly when it is to end."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from etl.database import migrate
from tests.dags.orders_stack import PATIENCE, Stack
from tests.spark.runs import DECLARATION, Order, orders
from tests.waiting import until

NAME = "followed"
TEXT = (
    DECLARATION.format(name=NAME, max_files=1, share=1.0)
    .replace("from etl.pipeline", "from datetime import timedelta\nfrom etl.pipeline")
    .replace(
        "    max_quarantine_share",
        "    follow=True, every=timedelta(seconds=1), retry_delay=timedelta(seconds=1),\n    max_quarantine_share",
    )
)
pytestmark = pytest.mark.timeout(900)


def test_a_run_is_kept_up_until_it_is_stopped(stack: Stack) -> None:
    home, api = stack.home, stack.api
    migrate(home.dsn)
    home.declare(NAME, text=TEXT)
    home.make_folder(NAME)
    stack.wait_for_dag(NAME)

    def delivered(count: int) -> bool:
        query = "SELECT count(*) FROM sluice.delivery WHERE pipeline = %s AND live"
        return home.ask(query, NAME) == [(count,)]

    def outcomes() -> list[str | None]:
        query = "SELECT outcome FROM sluice.run WHERE pipeline = %s ORDER BY started_at"
        return [one for (one,) in home.ask(query, NAME)]

    landed = home.land(f"{NAME}/0.jsonl", orders(0, 9, negative=[4]))
    api.unpause(NAME)
    until(lambda: delivered(1), "a delivery", patience=PATIENCE)
    [(first, state)] = api.runs(NAME).items()
    assert state == "running"

    # marked failed, it comes to the end of its batch, and the next run takes its place
    stack.call("PATCH", f"/dags/{NAME}/dagRuns/{quote(first, safe='')}", state="failed")
    until(lambda: len(outcomes()) == 2, "a run in its place", patience=PATIENCE)
    # the latter where the machine is too busy for it to end within GRACE_SECONDS
    assert outcomes()[0] in ("stopped", "lost its lease")
    landed += home.land(f"{NAME}/1.jsonl", orders(100, 9))
    until(lambda: delivered(2), "a second delivery", patience=PATIENCE)
    assert sorted(api.runs(NAME).values()) == ["failed", "running"]
    assert not api.is_paused(NAME)

    # paused and stopped, it stays down; its event tells of what no success has told before
    api.pause(NAME)
    assert home.sluice("stop", NAME).returncode == 0
    until(lambda: sorted(api.runs(NAME).values()) == ["failed", "success"], "its end", patience=PATIENCE)
    [last] = [run for run, state in api.runs(NAME).items() if state == "success"]
    events = stack.call("GET", "/assets/events")["asset_events"]
    told = [one["extra"]["deliveries"] for one in events if one["source_run_id"] == last]
    both = [
        number for (number,) in home.ask("SELECT delivery_id FROM sluice.delivery WHERE pipeline = %s", NAME)
    ]
    assert told == [sorted(both)] * 2
    tries = "SELECT outcome FROM sluice.airflow_try WHERE pipeline = %s ORDER BY started_at"
    assert home.ask(tries, NAME)[1:] == [("done",)]
    home.assert_one_history(NAME)
    assert home.reader(NAME).in_postgres(system=()) == landed.delivered
    assert home.reader(NAME).on_lake(system=()) == landed.delivered

    # a broken contract would break the next run in the same second
    home.land(f"{NAME}/2.jsonl", [Order(id=None)])
    api.unpause(NAME)
    until(lambda: api.is_paused(NAME), "a pause: it is started again and again", patience=PATIENCE)
    assert sorted(api.runs(NAME).values()) == ["failed", "failed", "success"]
    assert outcomes()[-1] == "ContractBroken"
    stack.alert("failed", "followed failed: exit code 3", NAME)
    assert delivered(2)
