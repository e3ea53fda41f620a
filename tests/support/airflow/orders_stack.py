"""A whole Airflow over one user's pipeline `orders`, for all tests of tests/dags."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest

from etl import services
from etl.airflow.api import ENDED, Api, sign_in
from etl.airflow.local import installation
from etl.airflow.local.environment import environment
from etl.airflow.local.stack import stop, up
from etl.common.errors import ServiceAway
from etl.common.settings import Settings
from etl.runs.workspace import Workspace
from etl.services import Services
from etl.services.process import tail
from tests.support.airflow.listeners import Inbox, mail, webhook
from tests.support.data.orders import DECLARATION, NAME, RULES, SHOPS, Landed, orders
from tests.support.environment import JARS
from tests.support.home import Home
from tests.support.processes import answers
from tests.support.waiting import until

SETTINGS = {  # of Airflow, in seconds
    "AIRFLOW__CORE__DEFAULT_TASK_EXECUTION_TIMEOUT": "3600",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",  # a test that declares a pipeline asks for it
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",  # at which a task learns that it is to end
}
PATIENCE = 420  # seconds; nothing is decided by it, a test that waits so long has failed
WATCHED = (
    DECLARATION.format(name=NAME, max_files=None, share=1.0)
    .replace("sink=Append()", 'sink=Append(partition_by=day("at"))')
    .replace("import Append,", "import Append, day,")
    .replace("from etl.pipeline", "from datetime import timedelta\nfrom etl.pipeline")
    .replace(
        "    max_quarantine_share",
        "    alert_quarantine_share=0.15, deadline=timedelta(seconds=20),\n"
        "    retry_delay=timedelta(seconds=5),\n    max_quarantine_share",
    )
    .replace("    return", '    print("so many columns:", len(df.columns))\n    df.printSchema()\n    return')
    + 'print("a banner")\n'
)


@dataclass(kw_only=True)
class Stack:
    """A local Airflow over one user's pipeline `orders`."""

    home: Home
    found: installation.Airflow
    landed: Landed
    posted: Inbox
    mailed: Inbox
    number: int = 0
    newest: str = ""  # the last run that has delivered one more file, and of which nothing was replaced

    @cached_property
    def api(self) -> Api:
        return sign_in(self.found.address, self.found.login)

    def land(self) -> None:
        """Land one more file, with a row to be held and a malformed record."""
        self.number += 1
        start = self.number * 1000
        made = orders(start, 9, negative=[start + 4])
        self.landed += self.home.land(f"orders/{self.number}.jsonl", made, ["{broken"])

    def run(self) -> str:
        return self.api.trigger(NAME)

    def deliver(self) -> str:
        """Deliver one more file, and return the id of the run."""
        self.land()
        run = self.run()
        assert self.ended(run) == "success"
        self.newest = run
        return run

    def ended(self, run: str, dag: str = NAME, *, within: float = PATIENCE) -> str:
        """Return the state in which the run ends."""
        state = ""

        def ended() -> bool:
            nonlocal state
            try:
                state = self.api.state(dag, run)
            except ServiceAway as away:  # a machine with much to do: it is asked again
                state = str(away)
            return state in ENDED

        until(ended, lambda: f"the end of {run}, which is {state}", patience=within, every=1)
        return state

    def question(self, run: str, dag: str = NAME, *, times: int = 1) -> dict[str, Any]:
        """Wait until the task of the run asks a person, for the so manieth time in one try, and return what it asks.

        The scheduler has then seen its process end: Airflow takes an answer before that for a task that was lost.
        """
        log = self.found.log("scheduler")

        def parked() -> bool:
            tasks = self.api.tasks(dag, run)
            assert self.api.state(dag, run) not in ENDED, self.api.log(dag, run, "run")
            words = (
                f"run_id={run},",
                " state=awaiting_input,",
                f" try_number={tasks[0].tries}," if tasks else "",
            )
            lines = [line for line in log.read_text().splitlines() if all(word in line for word in words)]
            return [task.state for task in tasks] == ["awaiting_input"] and len(lines) >= times

        until(parked, f"a question of {run}", patience=PATIENCE, every=0.5)
        return dict(self.call("GET", _question(dag, run)))

    def answer(self, run: str, choice: str, why: str, dag: str = NAME) -> None:
        """Answer what the task of the run asks, as this stack's user."""
        self.call("PATCH", _question(dag, run), chosen_options=[choice], params_input={"why": why})

    def alert(self, kind: str, words: str, pipeline: str = NAME) -> Any:
        """Wait for the alert of that kind about that pipeline which says so; others come before it."""
        about = {"kind": kind, "pipeline": pipeline}.items()
        return self.posted.wait_for(lambda one: about <= one.items() and words in one["text"], PATIENCE)

    def wait_for_dag(self, name: str) -> None:
        if name != NAME:
            self.read_dags()
        until(
            lambda: self.api.dag_is_known(name),
            lambda: f"the DAG {name}: {self.api.import_errors()}",
            patience=PATIENCE,
            every=0.5,
        )

    def read_dags(self) -> None:
        """Read the DAGs of all pipelines: they are of one file, which Airflow seldom reads by itself."""
        token = self.call("GET", f"/dags/{NAME}/details")["file_token"]
        self.call("PUT", f"/parseDagFile/{token}")

    def airflow(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Airflow's own command, as somebody at this machine types it: nothing of Airflow's is in the environment."""
        given = environment(self.found, self.home.place.settings, self.home.place.services)
        clean = {name: value for name, value in given.items() if not name.startswith("AIRFLOW")}
        command = [sys.executable, "-m", "etl.cli", "airflow", *words]
        return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=PATIENCE)

    def backfilled(self, dag: str, count: int) -> list[str]:
        """Wait for so many runs of a backfill."""

        seen: list[str] = []

        def complete() -> bool:
            runs = self.call("GET", f"/dags/{dag}/dagRuns?run_type=backfill")["dag_runs"]
            seen[:] = [run["dag_run_id"] for run in runs]
            return len(seen) == count

        until(complete, lambda: f"{count} runs: {seen}", patience=PATIENCE, every=0.5)
        return seen

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Asked again after a 500: Airflow gave up a transaction that met another of its own."""
        headers = {"Authorization": f"Bearer {self.api.token}"}
        for _ in range(3):
            answer = httpx.request(
                method, f"{self.found.address}/api/v2{path}", json=body, headers=headers, timeout=PATIENCE
            )
            if answer.status_code != httpx.codes.INTERNAL_SERVER_ERROR:
                break
            print(path, tail(self.found.log("api-server"), lines=80))
        assert answer.is_success, answer.text
        return answer.json()

    def set_failed(self, run: str, dag: str = NAME) -> None:
        self.call("PATCH", f"/dags/{dag}/dagRuns/{quote(run, safe='')}", state="failed")

    def told_by(self, run: str) -> list[dict[str, Any]]:
        """Return what the asset events of a run say, those of both sinks."""
        return [one["extra"] for one in self.events_of(run) if one["partition_key"] is None]

    def partitions_told_by(self, run: str) -> dict[str, dict[str, Any]]:
        """Return what the event of each partition that a run touched says, by its key."""
        events = [one for one in self.events_of(run) if one["uri"].endswith("/partitions")]
        told = {one["partition_key"]: one["extra"] for one in events}
        assert len(told) == len(events)
        return told

    def events_of(self, run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET", f"/assets/events?source_run_id={quote(run)}")[
            "asset_events"
        ]
        return found

    def clear(self, run: str, dag: str = NAME, *, only_failed: bool = False) -> None:
        body = {"dag_run_id": run, "dry_run": False, "only_failed": only_failed, "reset_dag_runs": True}
        self.call("POST", f"/dags/{dag}/clearTaskInstances", **body)

    def command(self, name: str = NAME) -> psutil.Process:
        """Return the `sluice run` that is at work."""
        words, home = ["-m", "etl.cli", "run", name], str(self.home.place.settings.home)
        alike = [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[1:5] == words]
        homes = answers(alike, lambda one: (one, one.environ().get("SLUICE_HOME")))
        [found] = [process for process, of_one in homes if of_one == home]
        return found

    def assert_exactly_once(self) -> None:
        self.home.assert_holds(self.landed)
        self.home.assert_clean()


def _question(dag: str, run: str) -> str:
    return f"/dags/{dag}/dagRuns/{quote(run, safe='')}/taskInstances/run/-1/hitlDetails"


@pytest.fixture(scope="package", name="stack")
def orders_stack(services: Services) -> Iterator[Stack]:
    """Run the stack until the end of this folder's tests; meanwhile the environment has its store's keys."""
    with pytest.MonkeyPatch.context() as monkeypatch, webhook() as posted, mail() as mailed:
        yield from started(monkeypatch, posted, mailed)


@pytest.fixture
def delivered(stack: Stack) -> Stack:
    """Return the stack when its pipeline has delivered something: its table is there."""
    if not stack.newest:
        stack.deliver()
    return stack


def started(monkeypatch: pytest.MonkeyPatch, posted: Inbox, mailed: Inbox) -> Iterator[Stack]:
    """Start Airflow over a user's own folder with its embedded services."""
    root = Path(tempfile.mkdtemp(prefix="sluice-"))
    root.chmod(0o711)
    mine, ours, landing = (root / name for name in ("my pipelines", "our-suites", "landing"))
    for folder in (mine, ours, landing / "orders"):
        folder.mkdir(parents=True)
    # a secret reaches Airflow's processes as it would a user's: inherited, or by a file
    monkeypatch.setenv("SLUICE_ALERT_WEBHOOK", f"http://127.0.0.1:{posted.port}/hook")
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    settings = Settings(
        home=root / "home",
        jars=JARS,
        pipelines=(mine,),
        suites=(ours,),
        landing=str(landing),
        spark_master="local[2]",
        alert_email="oncall@example.org",
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_SMTP_DEFAULT",
        json.dumps(
            {
                "conn_type": "smtp",
                "host": "127.0.0.1",
                "port": mailed.port,
                "extra": {"disable_ssl": True, "disable_tls": True},
            }
        ),
    )
    found = services.up(settings)
    for name, value in found.environment.items():  # this store's credentials, not the session's
        monkeypatch.setenv(name, value)
    home = Home(root=root, place=Workspace(settings=settings, services=found), spark=None)
    home.write("reference/shops.csv", SHOPS)
    home.declare(text=WATCHED)
    home.judge(*RULES)
    try:
        stack = Stack(home=home, found=up(settings), landed=Landed(), posted=posted, mailed=mailed)
        stack.wait_for_dag(NAME)
        stack.api.unpause(NAME)
        yield stack
    finally:
        stop(settings)
        services.down(settings)
    shutil.rmtree(root)
