"""A command as a task's child: its end is the task's to see, and the task's end is its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import psycopg2
import pytest

from etl.database import MIGRATION_LOCK
from etl.services import Services
from etl.settings import Settings
from tests.oracle import ask
from tests.waiting import until

PATIENCE = 60  # seconds; nothing is decided by it, a test that waits so long has failed
GONE_WITHIN = 10  # seconds

TASK = """
import json, signal, sys
from etl.airflow.process import Command

command = Command(words=["status"], environment=json.loads(sys.argv[1]), apart=sys.argv[2] == "apart")
signal.signal(signal.SIGTERM, lambda *_: command.kill())
print("exit code", command.run(lambda line: None).exit_code, flush=True)
"""


@pytest.fixture(params=["in the task's group", "apart"])
def task(
    request: pytest.FixtureRequest, database: str, services: Services, settings: Settings
) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """A task whose command waits in the database, and that command."""
    environment = {
        "SLUICE_HOME": str(settings.home),
        "SLUICE_POSTGRES": database,
        "SLUICE_LAKE": services.lake,
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
