"""Runs the command `sluice` in the test's own process, over its own Spark: a JVM of its own is most of what a command costs.

What is of a process and no other, such as signals, a JVM that dies and settings of Spark, needs a process: see forked.py.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from etl.cli import shared
from etl.cli.app import main
from etl.spark.signals import SIGNALS


def sluice(
    words: Sequence[str],
    spark: SparkSession,
    *,
    environment: Mapping[str, str],
    folder: Path,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; return its exit code and what it wrote. It reads `given`."""
    assert threading.current_thread() is threading.main_thread(), "a command handles signals"
    with tempfile.TemporaryDirectory(prefix="sluice-") as kept:
        out, err, read = Path(kept, "out"), Path(kept, "err"), Path(kept, "in")
        read.write_text(given)
        with ExitStack() as as_before:
            as_before.enter_context(_process(environment, folder, ["sluice", *words]))
            as_before.enter_context(kept_stdout())
            as_before.enter_context(_standard_files(read, out, err))
            as_before.enter_context(patch("etl.spark.session.start", lambda *_, **__: spark))
            as_before.enter_context(patch.object(SparkSession, "stop", lambda _: None))
            code = _code()
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


def _code() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


@contextmanager
def _process(environment: Mapping[str, str], folder: Path, arguments: list[str]) -> Iterator[None]:
    """Give this process an environment, a folder, arguments, handlers of signals and a log of its own within the block."""
    before, root = Path.cwd(), logging.getLogger()
    handlers, levels = (
        root.handlers[:],
        {name: logging.getLogger(name).level for name in ("", "sluice", "py4j")},
    )
    signals = {number: signal.getsignal(number) for number in SIGNALS}
    root.handlers.clear()
    try:
        with patch.dict(os.environ, environment, clear=True), patch.object(sys, "argv", arguments):
            os.chdir(folder)
            yield
    finally:
        os.chdir(before)
        time.tzset()
        root.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for number, handler in signals.items():
            signal.signal(number, handler)


@contextmanager
def _standard_files(read: Path, out: Path, err: Path) -> Iterator[None]:
    """Let standard input, output and error be these files within the block, also for children."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = [os.dup(number) for number in range(3)]
    python = (sys.stdin, sys.stdout, sys.stderr)
    try:
        with read.open() as stdin, out.open("w") as stdout, err.open("w") as stderr:
            for number, opened in enumerate((stdin, stdout, stderr)):
                os.dup2(opened.fileno(), number)
            sys.stdin, sys.stdout, sys.stderr = (
                os.fdopen(number, mode, closefd=False, errors="backslashreplace")
                for number, mode in enumerate("rww")
            )
            yield
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        sys.stdin, sys.stdout, sys.stderr = python
        for number, kept in enumerate(before):
            os.dup2(kept, number)
            os.close(kept)


@contextmanager
def kept_stdout() -> Iterator[None]:
    """Keep standard output as it is after the block, of which a command's `--json` sends all but the result elsewhere."""
    left = shared._result
    assert left is None, "a test before left its standard output to a command"
    before, python = os.dup(1), sys.stdout
    try:
        yield
    finally:
        sys.stdout = python
        os.dup2(before, 1)
        os.close(before)
        if shared._result is not None:
            shared._result.close()
            shared._result = None
