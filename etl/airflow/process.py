"""Runs a `sluice` command as a child process: reads its log line by line and its result, and ends it with its parent.

However this process ends, SIGKILL included, the command, its JVM and its Python workers end too: the kernel
kills the command with its parent, the JVM ends with the pipe to the command, the workers with the JVM. Where the parent
of this process is gone, Airflow's supervisor of the task, nobody would ever end it, and it ends the command itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import psutil

from etl.airflow.log_lines import WANTED, harmless, read
from etl.services.process import have_ended

GRACE_SECONDS = 3.0  # between SIGTERM and SIGKILL; Airflow kills the task itself after 5
PARENT_LOOKS_EVERY = 2.0  # seconds
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a command ended."""

    exit_code: int  # 128 + signal where a signal ended it
    printed: str
    result: Any  # what it printed, where that is JSON; else None
    said: tuple[str, ...]  # the last lines of its log


@dataclass(kw_only=True)
class Command:
    """`sluice …`, run by a Python: this very one, unless another is named."""

    arguments: Sequence[str]
    python: str = sys.executable
    environment: Mapping[str, str | None] = field(
        default_factory=dict
    )  # beside this process' own; None: unset
    given: str | None = None  # on its standard input: of any length, and for nobody to see in `ps`
    # In a process group of its own: Airflow signals the task's whole group, and a JVM that hears SIGTERM ends at once.
    own_group: bool = False
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def run(self, log: Callable[[int, str], None]) -> Finished:
        """Start the command, pass each line of its log to `log` with its level, and return how it ended."""
        parent = os.getppid()
        with tempfile.TemporaryFile("w+") as result, _standard_input(self.given) as given:
            mixed = {**os.environ, **self.environment}
            environment = {name: value for name, value in mixed.items() if value is not None}
            words = [self.python, "-m", "etl.cli", *self.arguments]
            self._process = _start(words, environment, given, result, self.own_group)
            with self._ended_without(parent, log):
                said = _follow(self._process, log)
                code = self._process.wait()
            result.seek(0)
            text = result.read()
        return Finished(
            exit_code=code if code >= 0 else 128 - code, printed=text, result=_json(text), said=said
        )

    def kill(self) -> None:
        """End the command and all that it started, within a few seconds."""
        if self._process is None or self._process.poll() is not None:
            return
        family = _family(self._process.pid)
        self._process.terminate()
        # The command itself is left to be reaped by `run`, which this may interrupt: its exit code is for that alone.
        if not have_ended(family, within=GRACE_SECONDS):
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            have_ended(family, within=GRACE_SECONDS)

    @contextlib.contextmanager
    def _ended_without(self, parent: int, log: Callable[[int, str], None]) -> Iterator[None]:
        """End the command while the block runs, once this process has another parent than that one.

        The kernel is not asked to kill this process then, as it is for the command: it is Airflow's, and may be told
        of the command's end first.
        """
        done = threading.Event()

        def look() -> None:
            while not done.wait(PARENT_LOOKS_EVERY):
                if os.getppid() != parent:
                    # first of all, for the log may lead to who is gone
                    self.kill()
                    with contextlib.suppress(Exception):
                        log(
                            logging.ERROR,
                            f"process {parent}, which had started this task, is gone: the command was ended",
                        )
                    return

        watch = threading.Thread(target=look, name="parent", daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()


@contextlib.contextmanager
def _standard_input(text: str | None) -> Iterator[IO[str] | int]:
    """Open what a command is to read: a file without a name, for at a pipe either may wait for the other.

    Without a text it is empty: the task's own standard input is a socket.
    """
    if text is None:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8") as given:
        given.write(text)
        given.seek(0)
        yield given


def _start(
    words: Sequence[str],
    environment: Mapping[str, str],
    given: IO[str] | int,
    result: IO[str],
    own_group: bool,
) -> subprocess.Popen[str]:
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def end_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was asked
            os._exit(128 + signal.SIGKILL)

    return subprocess.Popen(
        words,
        env={**environment, WANTED: "1", "PYTHONUNBUFFERED": "1", "PYSPARK_PYTHON": words[0]},
        stdin=given,
        stdout=result,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=end_with_parent,
        process_group=0 if own_group else None,
    )


def _follow(
    process: subprocess.Popen[str], log: Callable[[int, str], None], most: int = 20
) -> tuple[str, ...]:
    assert process.stderr is not None
    said: list[str] = []
    for written in process.stderr:
        level, text = read(written.rstrip())
        line = harmless(text)
        log(level, line)
        said = [*said[1 - most :], line]
    return tuple(said)


def _family(pid: int) -> list[psutil.Process]:
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _json(text: str) -> Any:
    """Read what a command printed as JSON; None where it is none, as of a command killed while it printed."""
    try:
        return json.loads(text)
    except ValueError:
        return None
