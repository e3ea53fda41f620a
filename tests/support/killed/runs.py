"""Runs in processes of their own that are killed at a step, with all that they started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Literal

import psutil
import pytest

from etl.common.settings import Settings
from etl.services import Services
from etl.services.process import have_ended
from tests.support.forked import Forked
from tests.support.home import Home
from tests.support.processes import answers

How = Literal["run", "follow", "replay"]
PATIENCE = 120  # seconds; nothing is decided by it, a test that waits so long has failed


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Starts runs in processes of their own, and kills them."""

    home: Home
    folder: Path
    reached: int  # file descriptor of the FIFO on which a run says that it has come to its step
    started: list[Forked] = field(default_factory=list)

    def start(self, step: str, passes: int, pipeline: str = "orders", *, how: How = "run") -> Forked:
        return self._start("spark_run", pipeline, step, str(passes), str(self.folder), how)

    def start_together(self, pipelines: Iterable[str], *, deliveries: int) -> Forked:
        """Start one process for all pipelines; each stops at the step "committed" after its number of deliveries."""
        return self._start("side_by_side", str(deliveries), str(self.folder), *pipelines)

    def _start(self, module: str, *words: str) -> Forked:
        run = Forked.start(
            f"{__package__}.{module}",
            words,
            environment=self.home.environment,
            folder=self.home.root,
            out=self.folder / "log",
        )
        self.started.append(run)
        return run

    def wait_for_step(self, process: Forked, *, patience: float = PATIENCE) -> int:
        """Wait for the process that comes to its step; return its pid."""
        deadline = time.monotonic() + patience
        while not wait([self.reached], 1):
            assert process.poll() is None, f"the run ended before its step: {self.log}"
            assert time.monotonic() < deadline, f"the run did not come to its step: {self.log}"
        return int(os.read(self.reached, 4096).split()[0])

    def forget(self) -> None:
        """Discard what processes that are dead by now have reported after the first one.

        They count as asked to stop before they were killed: three kills at one batch would else be that batch's.
        """
        self.home.ask(
            "UPDATE sluice.run SET stop_asked_at = now(), stop_asked_by = 'x' WHERE stop_asked_at IS NULL"
        )
        while wait([self.reached], 0):
            os.read(self.reached, 4096)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def runs_of(home: Home, folder: Path) -> Iterator[Runs]:
    """Runs of a place, with their log and markers in `folder`; none of them outlives it."""
    for name in ("reached", "wait"):
        os.mkfifo(folder / name)
    reached = os.open(folder / "reached", os.O_RDWR)
    found = Runs(home=home, folder=folder, reached=reached)
    try:
        yield found
    finally:
        try:
            for run in found.started:  # none lives, unless the test failed
                others = processes_of(run)
                run.process.kill()  # which may not have a session of its own yet
                answers(others, psutil.Process.kill)
                run.wait(PATIENCE)
        finally:
            os.close(reached)


@pytest.fixture
def runs(
    tmp_path: Path, dsn: str, services: Services, lake_uri: str, settings_for: Callable[..., Settings]
) -> Iterator[Runs]:
    home = Home.at(tmp_path / "user", dsn, services, lake_uri, settings_for)
    home.declare(max_files=1)
    with runs_of(home, tmp_path) as found:
        yield found


def processes_of(run: Forked) -> list[psutil.Process]:
    """Return all processes of the run's session: the driver while it lives, its JVM, the workers."""
    found = answers(psutil.process_iter(), lambda one: (one, os.getsid(one.pid)))
    return [process for process, session in found if session == run.pid]


def kill(run: Forked, stopped: int) -> None:
    """SIGKILL to the driver, then to its JVM; none of the run's processes is left."""
    others, java = others_of(run, stopped)
    os.kill(run.pid, signal.SIGKILL)
    assert run.wait(PATIENCE) == -signal.SIGKILL
    answers(java, psutil.Process.kill)  # it may have seen that its driver is gone
    assert_none_left(others)


def kill_jvm(run: Forked, stopped: int, runs: Runs) -> None:
    """SIGKILL to the JVM: the driver goes on from its step as far as it can, ends by itself and says why."""
    others, [jvm] = others_of(run, stopped)
    jvm.kill()
    if stopped == run.pid:
        (runs.folder / "wait").write_text("")
    assert run.wait(PATIENCE) == 1, runs.log
    assert "Spark's JVM is gone" in runs.log
    assert_none_left(others)


def others_of(run: Forked, stopped: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Return the run's processes but the driver, and its JVM, which a run that is at its lease has not yet."""
    named = answers(processes_of(run), lambda one: (one, one.name()))
    assert stopped in [process.pid for process, _ in named]
    others = [(process, name) for process, name in named if process.pid != run.pid]
    return [process for process, _ in others], [process for process, name in others if name == "java"]


def assert_none_left(processes: list[psutil.Process]) -> None:
    assert have_ended(processes, PATIENCE), processes
