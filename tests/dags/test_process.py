"""A command as a task's child: its end is the task's to see, and the task's end is its own."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest

from etl.airflow.operator import closing_line, failure
from etl.airflow.process import Command
from etl.common.migrations import MIGRATION_LOCK
from etl.common.settings import Settings
from etl.runs.summary import Summary
from etl.services import Services
from tests.support.airflow.by_hand import execute
from tests.support.oracle import ask
from tests.support.waiting import until

PATIENCE = 60  # seconds; nothing is decided by it, a test that waits so long has failed
GONE_WITHIN = 10  # seconds

TASK = """
import json, signal, sys
from etl.airflow.process import Command

command = Command(arguments=["status"], environment=json.loads(sys.argv[1]), own_group=sys.argv[2] == "apart")
signal.signal(signal.SIGTERM, lambda *_: command.kill())
print("exit code", command.run(lambda level, line: None).exit_code, flush=True)
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


SUPERVISOR = """
import subprocess, sys
runner = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
print(runner.pid, flush=True)
runner.wait()
"""
STAYS = """
import signal, sys, time
from etl.airflow import process
from etl.airflow.process import Command

start = process.subprocess.Popen
waits = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
process.subprocess.Popen = lambda words, **more: start(waits, **more)
print("exit code", Command(arguments=[], own_group=True).run(lambda level, line: None).exit_code, flush=True)
"""


def test_a_command_and_its_task_end_when_what_had_started_the_task_is_killed_alone() -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, STAYS], stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout is not None
    runner = psutil.Process(int(supervisor.stdout.readline()))
    until(lambda: bool(runner.children()), "the command to start", patience=PATIENCE)
    family = [runner, *runner.children()]
    supervisor.kill()
    assert supervisor.wait(PATIENCE) == -signal.SIGKILL
    _, left = psutil.wait_procs(family, GONE_WITHIN)
    for process in left:
        process.kill()
    assert left == []
    assert supervisor.stdout.read().strip() in (
        f"exit code {128 + number}" for number in (signal.SIGTERM, signal.SIGKILL)
    )


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
        "CHECKPOINTS": str(tmp_path / "checkpoints"),
    }
    for name, value in given.items():
        monkeypatch.setenv(f"SLUICE_{name}", value)
    return tmp_path / "pipelines" / "events.py"


def executed(**form: str) -> tuple[Any, dict[str, Any]]:
    """Execute the operator with what its form says; return what it returns or raises, and the XComs that it pushed."""
    from etl.airflow.operator import SluiceRunOperator

    pushed: dict[str, Any] = {}
    operator = SluiceRunOperator(task_id="run", pipeline="events", **form)
    try:
        return execute(operator, pushed), pushed
    except Exception as error:  # noqa: BLE001 - is what the test looks at
        return error, pushed


@pytest.mark.slow
def test_what_a_pipelines_file_prints_is_no_part_of_its_summary(declared: Path) -> None:
    noise = 'print("a banner")\nos.write(1, b"a library\\n")\nos.system("echo a child")'
    declared.write_text(DECLARATION.format(first=noise))
    summary, pushed = executed()
    assert (summary["pipeline"], summary["outcome"]) == ("events", "done"), summary
    assert pushed == {"summary": summary}


def test_a_python_that_is_not_there_is_told_and_not_tried_again(
    declared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared.write_text(DECLARATION.format(first=""))
    monkeypatch.setenv("SLUICE_PYTHON", str(declared.parent / "setting"))
    (declared.parent / "folder").mkdir()
    for form, place in (
        ({}, "setting"),
        ({"python": str(declared.parent / "named")}, "named"),
        ({"python": str(declared.parent / "folder")}, "folder"),
    ):
        error, _ = executed(**form)
        assert type(error).__name__ == "NeedsPerson"
        assert str(error).startswith(
            f"{declared.parent}/{place} is no program on {socket.gethostname()}: name the Python"
        )


def test_an_end_without_a_summary_is_told_and_not_tried_again(declared: Path) -> None:
    from etl.airflow.retries import Retries, kept_up

    declared.write_text(DECLARATION.format(first='os.write(1, b"so long")\nos._exit(0)'))
    error, pushed = executed()
    assert "`sluice run events --json` ended with exit code 0 and without its summary" in str(error)
    assert pushed == {}
    for policy in (Retries(retries=3, retry_delay=timedelta(seconds=1)), kept_up(timedelta(seconds=1))):
        assert policy.evaluate(error, 1, 3).action.value == "fail"


def test_what_a_form_says_reaches_the_command_at_any_length_and_is_on_no_command_line(declared: Path) -> None:
    """The kernel takes 128 KiB in one argument, and shows all of them to everybody."""
    line = declared.parent / "line"
    declared.write_text(
        DECLARATION.format(
            first=f'open({str(line)!r}, "wb").write(open("/proc/self/cmdline", "rb").read())\n'
            f"assert not open(0, closefd=False).read()  # nothing is left"
        )
    )
    error, _ = executed(release=",".join(map(str, range(50_000))), why="of a customer")
    assert type(error).__name__ == "NeedsPerson"
    assert "releases no rows" in str(error)
    words = line.read_bytes().split(b"\0")
    assert words[-5:] == [b"run", b"events", b"--json", b"--airflow", b""]


def test_a_commands_log_keeps_its_levels_and_commands_no_terminal_and_tells_no_secret(declared: Path) -> None:
    said = [
        'logging.getLogger("sluice").warning("a file\\x1b]0;owned\\x07, 100% of it\\nin two lines")',
        'logging.getLogger("sluice").info("at postgresql://ada:hunter2@db/x")',
        'os.write(2, b"a banner\\x1b[31m\\n")',
    ]
    declared.write_text(
        DECLARATION.format(first="\n".join(["import logging", *said])).replace("bigint", "big")
    )
    lines: list[tuple[int, str]] = []
    done = Command(arguments=["run", "events", "--json"]).run(lambda level, line: lines.append((level, line)))
    assert done.exit_code == 2
    assert lines[:4] == [
        (logging.WARNING, r"a file\x1b]0;owned\x07, 100% of it"),
        (logging.WARNING, "in two lines"),
        (logging.INFO, "at postgresql://***@db/x"),
        (logging.INFO, r"a banner\x1b[31m"),
    ]
    errors = [line for level, line in lines[4:] if level == logging.ERROR]
    assert errors[0].startswith("sluice: ")
    assert str(failure(done)).startswith(f"exit code 2. {errors[0]}")


def test_a_task_ends_with_what_its_run_read_beside_what_came_out_where_these_differ() -> None:
    figures = {"batches": 1, "delivered": 1, "quarantined": 6, "malformed": 4, "rows_in": 7, "seconds": 2.5}
    summary = Summary(pipeline="hours", stream="", run="", records=1186, **figures)
    done = "rows delivered 1, quarantined 6 (malformed or late 4), 2.5 s"
    read = "1,186 records read; 3 rows out + 4 malformed or late records"
    assert closing_line(summary) == f"hours: batches 1 ({read}), {done}"
    assert closing_line(replace(summary, records=7)) == f"hours: batches 1, {done}"
