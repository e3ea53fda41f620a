"""`dag.test()` runs a pipeline for real, and a DAG downstream reads each delivery once, whenever it comes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import psutil
import pytest

from etl.airflow.local.environment import environment
from tests.support.airflow.orders_stack import PATIENCE, Stack
from tests.support.environment import REPOSITORY
from tests.support.processes import answers
from tests.support.waiting import until

DOWNSTREAM = "flights_delays"
BY_CARRIER = "SELECT carrier, count(*), avg(dep_delay)::float8 FROM warehouse.flights WHERE month = 1"
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
    until(lambda: read(stack), "the run that its schedule starts", patience=PATIENCE, every=1)
    return stack


def deliver(stack: Stack, day: int) -> None:
    """Deliver a day of January by `airflow dags test`, which is `dag.test()`: a whole DAG run in one process."""
    landed = stack.home.sluice("land", "flights", "--days", f"2013-01-{day:02}..2013-01-{day:02}")
    assert landed.returncode == 0, landed.stderr
    place = stack.home.place
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


def read(stack: Stack) -> dict[str, list[dict[str, Any]]]:
    """Return what each successful run of the downstream DAG has read."""
    runs = stack.api.runs(DOWNSTREAM)
    done = [run for run, state in runs.items() if state == "success"]
    return {run: stack.api.xcom(DOWNSTREAM, run, "by_carrier") for run in done}


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


def test_the_dag_downstream_reads_each_delivery_once_also_what_comes_while_it_is_at_work(
    flights: Stack,
) -> None:
    seen = set(flights.api.runs(DOWNSTREAM))
    deliver(flights, 1)
    with held(flights):
        [first] = set(flights.api.runs(DOWNSTREAM)) - seen
        deliver(flights, 2)
        deliver(flights, 3)
    read_all(flights)
    found = read(flights)[first]
    wanted = flights.home.ask(f"{BY_CARRIER} AND day = 1 GROUP BY carrier ORDER BY carrier")
    assert len(wanted) > 10
    assert [(row["carrier"], row["flights"], pytest.approx(row["delay"])) for row in found] == wanted
    flights.clear(first, DOWNSTREAM)
    assert flights.ended(first, DOWNSTREAM) == "success"
    assert read(flights)[first] == found, "what it had read before"
    last = flights.api.trigger(DOWNSTREAM)
    assert flights.ended(last, DOWNSTREAM) == "success"
    assert "failed" not in flights.api.runs(DOWNSTREAM).values()
    assert read(flights)[last] == [], "those after it are not read again"
    assert flights.home.ask("SELECT DISTINCT run_type FROM sluice.airflow_try WHERE dag_id = 'flights'") == [
        ("manual",)
    ]


def test_what_a_failed_run_had_found_the_next_one_reads_with_what_came_since(flights: Stack) -> None:
    seen = set(flights.api.runs(DOWNSTREAM))
    deliver(flights, 4)
    with held(flights):
        [failed] = set(flights.api.runs(DOWNSTREAM)) - seen
        flights.set_failed(failed, DOWNSTREAM)
        deliver(flights, 5)
    read_all(flights)
    assert flights.api.state(DOWNSTREAM, failed) == "failed"
    [found] = [rows for run, rows in read(flights).items() if run not in seen and rows]
    wanted = flights.home.ask(f"{BY_CARRIER} AND day IN (4, 5) GROUP BY carrier ORDER BY carrier")
    assert len(wanted) > 10
    assert [(row["carrier"], row["flights"], pytest.approx(row["delay"])) for row in found] == wanted


def read_all(stack: Stack) -> None:
    """Wait until its runs have read as many flights as there are: each carrier's."""

    def counted() -> Counter[str]:
        rows = chain.from_iterable(read(stack).values())
        return sum((Counter({row["carrier"]: row["flights"]}) for row in rows), Counter())

    there = {carrier: count for carrier, count, _ in stack.home.ask(f"{BY_CARRIER} GROUP BY carrier")}
    until(
        lambda: counted().total() >= sum(there.values()),
        lambda: f"{there} to be read, and not only {counted()}",
        patience=PATIENCE,
        every=1,
    )
    assert counted() == there
