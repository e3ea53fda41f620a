"""A command as a task's child: its end is the task's to see, and the task's end is its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg2
import pytest

from etl.common.database import MIGRATION_LOCK
from etl.common.settings import Settings
from etl.services import Services
from tests.support.oracle import ask
from tests.support.waiting import until

PATIENCE = 60  # seconds; nothing is decided by it, a test that waits so long has failed
GONE_WITHIN = 10  # seconds

TASK = """
import json, signal, sys
from etl.airflow.process import Command

command = Command(arguments=["status"], environment=json.loads(sys.argv[1]), own_group=sys.argv[2] == "apart")
signal.signal(signal.SIGTERM, lambda *_: command.kill())
print("exit code", command.run(lambda line: None).exit_code, flush=True)
"""


@pytest.fixture(params=["in the task's group", "apart"])
def task(
    request: pytest.FixtureRequest, database: str, lake_uri: str, services: Services, settings: Settings
) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Return a task whose command waits in the database, and that command."""
    environment = {
        "SLUICE_HOME": str(settings.home),
        "SLUICE_POSTGRES": database,
        "SLUICE_LAKE": lake_uri,
        "SLUICE_S3_ENDPOINT": services.s3_endpoint,
    }
    with psycopg2.connect(database) as holder, holder.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))  # `status` migrates first
        task = subprocess.Popen(
            [sys.executable, "-c", TASK, json.dumps(environment), request.param],
            stdout=subprocess.PIPE,
            text=True,
        )
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
        until(lambda: ask(database, query) != [(0,)], "the command to reach the database", patience=PATIENCE)
        [command] = psutil.Process(task.pid).children()
        assert (os.getpgid(command.pid) == command.pid) is (request.param == "apart")
        yield task, command
        if task.poll() is None:
            task.kill()
        task.wait(PATIENCE)


def test_a_killed_command_is_no_success(task: tuple[subprocess.Popen[str], psutil.Process]) -> None:
    process, command = task
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=PATIENCE)
    assert said.strip() in (f"exit code {128 + number}" for number in (signal.SIGTERM, signal.SIGKILL))
    assert not command.is_running()


def test_a_command_ends_with_a_task_that_is_killed(
    task: tuple[subprocess.Popen[str], psutil.Process],
) -> None:
    process, command = task
    os.kill(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)
    _, left = psutil.wait_procs([command], GONE_WITHIN)
    assert left == []


# What a pipeline's file does while the operator's command loads it, which is all of it where nothing has landed

DECLARATION = """
import os

from etl.pipeline import Append, Files, Pipeline

{first}
PIPELINE = Pipeline(
    name="events",
    sources=(Files("events/*.jsonl"),),
    schema="id bigint",
    transform=lambda frame: frame,
    sink=Append(),
)
"""


@pytest.fixture
def declared(
    database: str,
    lake_uri: str,
    services: Services,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Return the file that declares the pipeline, in the settings of this process."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "landing" / "events").mkdir(parents=True)
    given = {
        "HOME": str(settings.home),
        "POSTGRES": database,
        "LAKE": lake_uri,
        "S3_ENDPOINT": str(services.s3_endpoint),
        "PIPELINES": str(tmp_path / "pipelines"),
        "LANDING": str(tmp_path / "landing"),
    }
    for name, value in given.items():
        monkeypatch.setenv(f"SLUICE_{name}", value)
    return tmp_path / "pipelines" / "events.py"


def executed() -> tuple[Any, dict[str, Any]]:
    """Execute the operator; return what it returns or raises, and the XComs that it pushed."""
    from etl.airflow.operator import SluiceRunOperator

    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(
        dag_id="events",
        run_id="manual",
        task_id="run",
        try_number=1,
        xcom_push=lambda key, value: pushed.update({key: value}),
    )
    dag_run = SimpleNamespace(
        data_interval_start=None,
        data_interval_end=None,
        run_type="manual",
        clear_number=0,
        triggering_user_name=None,
    )
    operator: Any = SluiceRunOperator(task_id="run", pipeline="events")
    try:
        return operator.execute({"ti": ti, "dag_run": dag_run}), pushed
    except Exception as error:  # noqa: BLE001 - is what the test looks at
        return error, pushed


@pytest.mark.slow
def test_what_a_pipelines_file_prints_is_no_part_of_its_summary(declared: Path) -> None:
    noise = 'print("a banner")\nos.write(1, b"a library\\n")\nos.system("echo a child")'
    declared.write_text(DECLARATION.format(first=noise))
    summary, pushed = executed()
    assert (summary["pipeline"], summary["outcome"]) == ("events", "done"), summary
    assert pushed == {"summary": summary}


def test_an_end_without_a_summary_is_told_and_not_tried_again(declared: Path) -> None:
    from etl.airflow.operator import RETRIES, kept_up

    declared.write_text(DECLARATION.format(first='os.write(1, b"so long")\nos._exit(0)'))
    error, pushed = executed()
    assert "`sluice run events --json` ended with exit code 0 and without its summary" in str(error)
    assert pushed == {}
    for policy in (RETRIES, kept_up(timedelta(seconds=1))):
        assert policy.evaluate(error, 1, 3).action.value == "fail"
