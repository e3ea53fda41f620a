"""`dag.test()` runs a pipeline for real, and a DAG downstream counts each row once, whenever its delivery comes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from etl.airflow.local.environment import environment
from etl.common.database import transaction
from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.environment import REPOSITORY
from tests.support.processes import answers
from tests.support.waiting import until

DOWNSTREAM = "flights_delays"
COUNTED = "SELECT carrier, flights, departed, minutes FROM warehouse.flights_delays WHERE flights > 0 ORDER BY carrier"
WANTED = """
    SELECT carrier, count(*), count(dep_delay), coalesce(sum(dep_delay), 0) FROM warehouse.flights GROUP BY carrier
    ORDER BY carrier
"""
BY_DAY = "flights_by_day"
SUMMED = "SELECT day::text, flights, departed, minutes FROM warehouse.flights_by_day ORDER BY day"
WANTED_BY_DAY = """
    SELECT (scheduled_departure AT TIME ZONE 'UTC')::date::text, count(*), count(dep_delay), coalesce(sum(dep_delay), 0)
    FROM warehouse.flights WHERE _delivery_id = ANY (%s) OR %s GROUP BY 1 ORDER BY 1
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def flights(stack: Stack) -> Stack:
    """Put the shipped pipeline among the user's own; its DAG downstream, unpaused, has looked for what there was."""
    shutil.copy(REPOSITORY / "etl" / "pipelines" / "flights.py", stack.home.root / "my pipelines")
    shutil.copy(REPOSITORY / "expectations" / "flights.json", stack.home.root / "our-suites")
    stack.wait_for_dag("flights")
    made = stack.airflow("dags", "reserialize")  # of each file: the DAG downstream is of one that had none
    assert made.returncode == 0, made.stdout + made.stderr
    stack.wait_for_dag(DOWNSTREAM)
    stack.api.unpause(DOWNSTREAM)
    until(lambda: succeeded(stack), "the run that its schedule starts", patience=PATIENCE, every=1)
    return stack


def deliver(stack: Stack, day: int) -> None:
    """Deliver a day of January by `airflow dags test`, which is `dag.test()`: a whole DAG run in one process."""
    landed = stack.home.sluice("land", "flights", "--days", f"2013-01-{day:02}..2013-01-{day:02}")
    assert landed.returncode == 0, landed.stderr
    run_in_one_process(stack)


def run_in_one_process(stack: Stack) -> str:
    """Run the DAG of `flights`, paused as it is; return the id of its run."""
    before, place = set(stack.api.runs("flights")), stack.home.place
    done = subprocess.run(
        [sys.executable, "-P", "-m", "airflow", "dags", "test", "flights"],
        env=environment(stack.found, place.settings, place.services),
        cwd=stack.home.root,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [made] = set(stack.api.runs("flights")) - before
    return made


def succeeded(stack: Stack) -> list[str]:
    """Return the runs of the downstream DAG that ended well."""
    return [run for run, state in stack.api.runs(DOWNSTREAM).items() if state == "success"]


def read(stack: Stack, run: str) -> dict[str, list[int]]:
    """Return which deliveries' rows came, and which ones' left, for that run of the downstream DAG."""
    found: dict[str, list[int]] = stack.api.xcom(DOWNSTREAM, run, "by_carrier")
    return found


@contextmanager
def held(stack: Stack) -> Iterator[None]:
    """Stop the run of the DAG downstream that is under way where it has found out what is new, until the block is left."""
    home = str(stack.home.place.settings.home)

    def drivers() -> list[psutil.Process]:
        asked = answers(psutil.process_iter(), lambda one: (one, one.cmdline()))
        spark = [one for one, words in asked if "org.apache.spark.deploy.SparkSubmit" in words]
        homes = answers(spark, lambda one: (one.parent(), one.environ().get("SLUICE_HOME")))
        # the script that starts the JVM, and what it asks for the command line, bear the same words
        return [parent for parent, of_one in homes if parent not in (None, *spark) and of_one == home]

    [task] = until(drivers, "the task downstream to start Spark", patience=PATIENCE)
    task.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):  # of a run that was marked failed
            task.resume()


def looked(stack: Stack) -> dict[str, list[int]]:
    """Have the DAG downstream look once more, without an event; return what it read."""
    run = stack.api.trigger(DOWNSTREAM)
    assert stack.ended(run, DOWNSTREAM) == "success"
    return read(stack, run)


def assert_counted_once(stack: Stack, *days: int) -> None:
    """Wait until its table has what the pipeline's has, these days of January among it."""

    def the_same() -> bool:
        there = stack.home.ask("SELECT to_regclass('warehouse.flights_delays') IS NOT NULL") == [(True,)]
        return there and stack.home.ask(COUNTED) == stack.home.ask(WANTED)

    until(the_same, "each flight to be counted", patience=PATIENCE, every=1)
    assert {*days} <= {day for (day,) in stack.home.ask("SELECT DISTINCT day FROM warehouse.flights")}
    assert looked(stack) == {"deliveries": [], "replaced": []}, "nothing is left to be read"
    assert the_same()


def test_the_dag_downstream_counts_each_flight_once_also_of_three_deliveries_while_it_is_at_work(
    flights: Stack,
) -> None:
    seen = set(flights.api.runs(DOWNSTREAM))
    deliver(flights, 1)
    with held(flights):
        [first] = set(flights.api.runs(DOWNSTREAM)) - seen
        for number in (2, 3, 4):
            deliver(flights, number)
    assert_counted_once(flights, 1, 2, 3, 4)
    [deliveries] = flights.home.ask(
        "SELECT array_agg(delivery_id ORDER BY commit_seq) FROM sluice.delivery WHERE pipeline = 'flights'"
    )[0]
    assert read(flights, first)["deliveries"] == deliveries[:1]
    flights.clear(first, DOWNSTREAM)
    assert flights.ended(first, DOWNSTREAM) == "success"
    assert_counted_once(flights, 1, 2, 3, 4)
    assert "failed" not in flights.api.runs(DOWNSTREAM).values()
    assert flights.home.ask("SELECT DISTINCT run_type FROM sluice.airflow_try WHERE dag_id = 'flights'") == [
        ("manual",)
    ]


def test_what_a_failed_run_had_found_is_counted_once_with_what_came_since(flights: Stack) -> None:
    seen = set(flights.api.runs(DOWNSTREAM))
    deliver(flights, 5)
    with held(flights):
        [failed] = set(flights.api.runs(DOWNSTREAM)) - seen
        flights.set_failed(failed, DOWNSTREAM)
        deliver(flights, 6)
    assert_counted_once(flights, 5, 6)
    assert flights.api.state(DOWNSTREAM, failed) == "failed"


def test_what_a_replay_replaced_is_taken_back(flights: Stack) -> None:
    deliver(flights, 7)
    assert_counted_once(flights, 7)
    [(old,)] = flights.home.ask("SELECT max(delivery_id) FROM sluice.delivery WHERE pipeline = 'flights'")
    replayed = flights.home.sluice("replay", "flights", "--deliveries", str(old), "--why", "again")
    assert replayed.returncode == 0, replayed.stderr
    in_force = (
        "SELECT delivery_id FROM sluice.delivery WHERE pipeline = 'flights' AND live ORDER BY commit_seq"
    )
    live = [number for (number,) in flights.home.ask(in_force)]
    assert looked(flights) == {"deliveries": live[-1:], "replaced": [old]}
    assert_counted_once(flights, 7)
    anew = flights.api.trigger(DOWNSTREAM, {"anew": True})
    assert flights.ended(anew, DOWNSTREAM) == "success"
    assert read(flights, anew) == {"deliveries": live, "replaced": []}
    assert_counted_once(flights, 7)


def test_a_day_is_summed_anew_when_a_delivery_touched_it_and_when_a_replay_replaced_it(
    flights: Stack,
) -> None:
    flights.api.unpause(BY_DAY)
    seen = set(flights.api.runs(BY_DAY))
    deliver(flights, 8)
    [eighth] = newest(flights, 1)
    days = days_of(flights, eighth)
    assert days == ["2013-01-08", "2013-01-09"], "New York's evening is the next day in UTC"
    assert summed(flights, seen, len(days)) == days
    deliver(flights, 9)
    assert summed(flights, seen, 2) == ["2013-01-09", "2013-01-10"]
    assert flights.home.ask(SUMMED) == flights.home.ask(WANTED_BY_DAY, [], True)

    replayed = flights.api.trigger("flights_replays", {"deliveries": str(eighth)})
    assert flights.ended(replayed, "flights_replays") == "success"
    assert summed(flights, seen, len(days)) == days
    assert flights.home.ask(SUMMED) == flights.home.ask(WANTED_BY_DAY, [], True)
    nothing_new = run_in_one_process(flights)
    with transaction(flights.home.dsn) as cursor:
        cursor.execute("DELETE FROM warehouse.flights_by_day WHERE day <> '2013-01-09'")
    flights.api.trigger(BY_DAY)
    assert summed(flights, seen, 1) == [None], "no other run came"
    assert flights.home.ask(SUMMED) == flights.home.ask(WANTED_BY_DAY, [], True), (
        "without a key it sums all days"
    )
    assert len(flights.told_by(nothing_new)) == 2
    assert flights.partitions_told_by(nothing_new) == {}, (
        "an event without a key would be an error in Airflow's log"
    )


def newest(stack: Stack, count: int) -> list[int]:
    """Return the newest deliveries, in the order of their commits."""
    asked = (
        "SELECT delivery_id FROM sluice.delivery WHERE pipeline = 'flights' ORDER BY commit_seq DESC LIMIT %s"
    )
    return [number for (number,) in stack.home.ask(asked, count)][::-1]


def days_of(stack: Stack, delivery: int) -> list[str]:
    return [day for day, *_ in stack.home.ask(WANTED_BY_DAY, [delivery], False)]


def summed(stack: Stack, seen: set[str], count: int) -> list[str | None]:
    """Wait for `count` runs by day that are not `seen`, and add them to these; return the partition key of each."""
    new: dict[str, str | None] = {}

    def ended() -> bool:
        runs = stack.call("GET", f"/dags/{BY_DAY}/dagRuns?limit=1000")["dag_runs"]
        found = [run for run in runs if run["dag_run_id"] not in seen]
        new.update((run["dag_run_id"], run["partition_key"]) for run in found)
        return [run["state"] for run in found].count("success") >= count

    until(ended, lambda: f"{count} runs: {new}", patience=PATIENCE, every=1)
    seen.update(new)
    return sorted(new.values(), key=str)
