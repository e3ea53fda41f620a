"""`dag.test()` runs a pipeline for real, and a DAG downstream reads exactly what each run delivered."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from etl.services.airflow_environment import environment
from tests.conftest import REPOSITORY
from tests.dags.orders_stack import PATIENCE, Stack
from tests.waiting import until

DOWNSTREAM = "flights_delays"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def flights(stack: Stack) -> Stack:
    """The shipped pipeline among the user's own."""
    shutil.copy(REPOSITORY / "etl" / "pipelines" / "flights.py", stack.home.root / "my pipelines")
    shutil.copy(REPOSITORY / "expectations" / "flights.json", stack.home.root / "our-suites")
    stack.api.unpause(DOWNSTREAM)
    return stack


def dag_test(stack: Stack, dag: str) -> None:
    """`airflow dags test`, which is `dag.test()`: the whole DAG run in one process, without the scheduler."""
    place = stack.home.place
    done = subprocess.run(
        [sys.executable, "-P", "-m", "airflow", "dags", "test", dag],
        env=environment(stack.found, place.settings, place.services),
        cwd=stack.home.root,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def next_run(stack: Stack, seen: set[str]) -> str:
    """The run of the DAG downstream that was not there yet."""
    [run] = until(
        lambda: stack.api.runs(DOWNSTREAM).keys() - seen,
        "an asset event that starts the DAG downstream",
        patience=PATIENCE,
        every=0.5,
    )
    return run


def test_the_dag_downstream_reads_exactly_the_batches_of_each_run(flights: Stack) -> None:
    seen: set[str] = set()
    for first, last in ((1, 2), (3, 3)):
        landed = flights.home.sluice("land", "flights", "--days", f"2013-01-0{first}..2013-01-0{last}")
        assert landed.returncode == 0, landed.stderr
        dag_test(flights, "flights")
        run = next_run(flights, seen)
        seen.add(run)
        assert flights.ended(run, DOWNSTREAM) == "success"
        found = flights.api.xcom(DOWNSTREAM, run, "by_carrier")
        wanted = flights.home.ask(
            "SELECT carrier, count(*), avg(dep_delay)::float8 FROM warehouse.flights"
            " WHERE month = 1 AND day BETWEEN %s AND %s GROUP BY carrier ORDER BY carrier",
            first,
            last,
        )
        assert len(wanted) > 10
        assert [(row["carrier"], row["flights"], pytest.approx(row["delay"])) for row in found] == wanted
    assert flights.home.ask("SELECT DISTINCT run_type FROM sluice.airflow_try WHERE dag_id = 'flights'") == [
        ("manual",)
    ]
