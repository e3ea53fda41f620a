"""A pipeline that says `follow=True` is kept up by a whole Airflow, and ends cleanly when it is to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest

from etl.common.migrations import migrate
from etl.pipeline.dag_names import replays_of
from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.data.orders import DECLARATION, RULES, Landed, Order, orders
from tests.support.waiting import until

NAME = "followed"
BESIDE = replays_of(NAME)
TEXT = (
    DECLARATION.format(name=NAME, max_files=1, share=1.0)
    .replace("from etl.pipeline", "from datetime import timedelta\nfrom etl.pipeline")
    .replace(
        "    max_quarantine_share",
        "    interval='at', follow=True, every=timedelta(seconds=1), retry_delay=timedelta(seconds=1),\n"
        "    max_quarantine_share",
    )
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(kw_only=True)
class KeptUp:
    """The pipeline, what has landed for it, and what the ledger says of it."""

    stack: Stack
    landed: Landed = field(default_factory=Landed)

    def land(self, number: int, negative: Sequence[int] = ()) -> None:
        made = orders(number * 100, 9, negative=negative)
        self.landed += self.stack.home.land(f"{NAME}/{number}.jsonl", made)

    def delivered(self, count: int) -> bool:
        query = "SELECT count(*) FROM sluice.delivery WHERE pipeline = %s AND live"
        return self.stack.home.ask(query, NAME) == [(count,)]

    def outcomes(self) -> list[str | None]:
        query = "SELECT outcome FROM sluice.run WHERE pipeline = %s AND kind = 'stream' ORDER BY started_at"
        return [one for (one,) in self.stack.home.ask(query, NAME)]

    def asks(self) -> str | None:
        """Return the run of the pipeline's DAG that waits for an answer."""
        api = self.stack.api
        waits = [
            run for run in api.runs(NAME) for task in api.tasks(NAME, run) if task.state == "awaiting_input"
        ]
        return waits[0] if waits else None

    def states(self) -> list[str]:
        """Return the states of the runs of the pipeline's DAG."""
        return sorted(self.stack.api.runs(NAME).values())


def test_a_run_is_kept_up_until_it_is_stopped(stack: Stack) -> None:
    migrate(stack.home.dsn)
    stack.home.declare(NAME, text=TEXT)
    stack.home.make_folder(NAME)
    stack.wait_for_dag(NAME)
    kept = KeptUp(stack=stack)
    kept.land(0, negative=[4])
    stack.api.unpause(NAME)
    nothing = stack.api.trigger(BESIDE)
    until(lambda: kept.delivered(1), "a delivery", patience=PATIENCE)
    [(first, state)] = stack.api.runs(NAME).items()
    assert state == "running"

    assert_refused(stack, nothing)
    row, released = kill_and_release(kept, first)
    beside = replay_beside(kept, first, row, released)
    fail(kept, first)
    pause_and_stop(kept, beside)
    break_the_contract(kept)


def assert_refused(stack: Stack, nothing: str) -> None:
    """Require that a run of the DAG for replays that asks for nothing fails, and delivers nothing of what has landed."""
    assert stack.ended(nothing, BESIDE) == "failed"
    [task] = stack.api.tasks(BESIDE, nothing)
    assert (task.tries, stack.api.xcom(BESIDE, nothing, "run", "summary")["exit_code"]) == (1, 2)
    said = "\n".join(stack.api.log(BESIDE, nothing, "run"))
    assert 'trigger it with "Replay deliveries" filled in' in said


def kill_and_release(kept: KeptUp, first: str) -> tuple[int, str]:
    """Kill the run's command; another try of the same run goes on, and a release is made meanwhile."""
    stack, home, api = kept.stack, kept.stack.home, kept.stack.api
    stack.command(NAME).kill()
    home.judge(*RULES[1:])
    [(row,)] = home.ask("SELECT quarantine_id FROM sluice.quarantine WHERE pipeline = %s", NAME)
    released = api.trigger(BESIDE, {"release": str(row), "why": "a refund"})
    kept.land(1)
    until(lambda: kept.delivered(3), "a release and a second delivery", patience=PATIENCE)
    kept.landed.released += [one for one in kept.landed.orders if one.reasons]
    [task] = api.tasks(NAME, first)
    assert (task.state, task.tries, list(api.runs(NAME))) == ("running", 2, [first])
    stack.alert("failed", "followed died and will be started again: exit code 137", NAME)
    return row, released


def replay_beside(kept: KeptUp, first: str, row: int, released: str) -> list[dict[str, Any]]:
    """Replay an interval beside the run that is up; return what the replay's event and the release's say."""
    stack, home, api = kept.stack, kept.stack.home, kept.stack.api
    replayed = api.trigger(BESIDE, {"start": "2020-01-05", "end": "2020-01-06"})
    assert [stack.ended(run, BESIDE) for run in (released, replayed)] == ["success", "success"]
    assert api.state(NAME, first) == "running"
    assert kept.delivered(3)
    home.judge(*RULES)
    streams = "SELECT delivery_id FROM sluice.delivery WHERE pipeline = %s AND kind = 'stream' ORDER BY 1"
    _, (second,) = home.ask(streams, NAME)
    beside = [told_by(stack, BESIDE, run) for run in (released, replayed)]
    assert [(one["action"], one["released"], one["replaced"]) for one in beside] == [
        ("released", [row], []),
        ("replaced", [], [second]),
    ]
    return beside


def fail(kept: KeptUp, first: str) -> None:
    """Marked failed, it comes to the end of its batch, and the next run takes its place."""
    stack = kept.stack
    stack.call("PATCH", f"/dags/{NAME}/dagRuns/{quote(first, safe='')}", state="failed")
    until(lambda: kept.outcomes()[1] is not None, "its end", patience=PATIENCE)
    stack.read_dags()  # where somebody has ended a run by hand, Airflow makes the next one when it reads its DAG
    until(lambda: len(kept.outcomes()) == 3, "a run in its place", patience=PATIENCE)
    # the latter where the machine is too busy for it to end within GRACE_SECONDS
    assert kept.outcomes()[1] in ("stopped", "lost its lease")
    kept.land(2)
    until(lambda: kept.delivered(4), "a delivery of the next run", patience=PATIENCE)
    assert kept.states() == ["failed", "running"]
    assert not stack.api.is_paused(NAME)


def pause_and_stop(kept: KeptUp, beside: Sequence[dict[str, Any]]) -> None:
    """Paused and stopped, it stays down; its event tells of what no success has told before."""
    stack, home, api = kept.stack, kept.stack.home, kept.stack.api
    [last] = [run for run, state in api.runs(NAME).items() if state == "running"]
    api.pause(NAME)
    assert home.sluice("stop", NAME).returncode == 0
    # Airflow looks once a minute whether the run of a paused DAG has ended, but its task's end is known at once.
    until(lambda: [one.state for one in api.tasks(NAME, last)] == ["success"], "its end", patience=PATIENCE)
    live = "SELECT array_agg(delivery_id ORDER BY 1) FROM sluice.delivery WHERE pipeline = %s AND live"
    events = [*beside, told_by(stack, NAME, last)]
    told = [number for event in events for number in event["deliveries"]]
    assert home.ask(live, NAME) == [(sorted(told),)], "each is told of once"
    tries = "SELECT outcome FROM sluice.airflow_try WHERE dag_id = %s ORDER BY started_at"
    killed, failed, stopped = home.ask(tries, NAME)
    assert (killed, stopped) == ((None,), ("done",))
    assert failed != ("done",)
    home.assert_one_history(NAME)
    assert home.reader(NAME).in_postgres(system=()) == kept.landed.delivered
    assert home.reader(NAME).on_lake(system=()) == kept.landed.delivered


def break_the_contract(kept: KeptUp) -> None:
    """Break the contract: answered, the run is up again; left as it is, it fails, and the DAG is paused."""
    stack, api = kept.stack, kept.stack.api
    stack.home.land(f"{NAME}/3.jsonl", [Order(id=None)])
    api.unpause(NAME)
    stack.read_dags()
    run = until(kept.asks, "a question", patience=PATIENCE)
    stack.question(run, NAME)
    stack.answer(run, "Hold the bad rows, deliver the rest", "no number", NAME)
    until(lambda: kept.delivered(5), "the batch that was decided on", patience=PATIENCE)
    assert api.state(NAME, run) == "running"
    stack.home.land(f"{NAME}/4.jsonl", [Order(id=None)])
    assert until(kept.asks, "another question", patience=PATIENCE) == run
    stack.question(run, NAME)
    stack.answer(run, "Leave it", "its vendor is asked", NAME)
    until(lambda: api.is_paused(NAME), "a pause: it is started again and again", patience=PATIENCE)
    until(lambda: kept.states() == ["failed", "failed", "success"], "the ends of all", patience=PATIENCE)
    assert kept.outcomes()[-1] == "ContractBroken"
    stack.alert("failed", "left it as it is: its vendor is asked", NAME)
    assert kept.delivered(5)


def told_by(stack: Stack, dag: str, run: str) -> dict[str, Any]:
    """Return what the run's two events name."""
    events = stack.call("GET", "/assets/events?order_by=-timestamp")["asset_events"]
    mine = [one["extra"] for one in events if (one["source_dag_id"], one["source_run_id"]) == (dag, run)]
    assert len(mine) == 2
    assert mine[0] == mine[1]
    found: dict[str, Any] = mine[0]
    return found
