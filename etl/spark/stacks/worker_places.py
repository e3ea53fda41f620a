"""Tells where the Python workers of a local Spark are: in which line of a transform or of Sluice's own work."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from etl.spark.stacks.worker_daemon import ASK, MODULE

if TYPE_CHECKING:
    import psutil

PATIENCE_SECONDS = 3.0  # for the answers of all workers; one that the kernel holds does not answer
LOOK_SECONDS = 0.02
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_ENDS = (" in _run_module_as_main\n", "\n  ...\n")  # of a traceback; of one that is cut at 100 calls
_PYSPARK = re.compile(r"(-packages|\.zip|/python)/pyspark/")
_READS = ("/socket.py", "/pyarrow/ipc.py")  # PySpark by these
_SLUICE = re.compile(rf"{re.escape(str(Path(__file__).parents[2]))}/(?!pipelines/)")
_LIBRARY = re.compile(r"-packages/(?!etl/)|/lib/python3[^/]*/(?!\w+-packages/)|^<frozen ")


@dataclass(frozen=True, order=True)
class Frame:
    """One call of a Python traceback."""

    file: str
    line: int
    function: str


def worker_places(jvm: int, log: Path) -> list[str]:
    """Ask the Python workers of a JVM, whose log has what they write, where they are; return each place once.

    Workers that wait for rows or for work have none. Those in a person's own code come first.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    places = {place_of(read_frames(_answer(worker, log, deadline))) for worker in _workers(jvm)}
    return [str(place) for place in sorted(place for place in places if place is not None)]


def _workers(jvm: int) -> list[psutil.Process]:
    """Return the workers below a JVM: processes that its daemon has forked."""
    import psutil

    forked = {}
    for process in psutil.Process(jvm).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if MODULE in process.cmdline():
                forked[process.pid] = (process, process.ppid())
    return [process for process, parent in forked.values() if parent in forked]


def _answer(worker: psutil.Process, log: Path, deadline: float) -> str:
    """Return what the log has more once the worker has been asked."""
    import psutil

    before = log.stat().st_size
    with suppress(psutil.NoSuchProcess):
        worker.send_signal(ASK)
    while True:
        with log.open("rb") as file:
            file.seek(before)
            answer = file.read().decode(errors="replace")
        if any(end in answer for end in _ENDS) or time.monotonic() > deadline:
            return answer
        time.sleep(LOOK_SECONDS)


def read_frames(traceback: str) -> list[Frame]:
    """Return the calls of a traceback as faulthandler writes it, the innermost first."""
    return [
        Frame(found["file"], int(found["line"]), found["function"]) for found in _FRAME.finditer(traceback)
    ]


@dataclass(frozen=True, order=True)
class CodePlace:
    """Where a worker is: the innermost call that is no library's, and the innermost of all."""

    foreign: bool  # it is Sluice's or a library's
    telling: Frame
    innermost: Frame

    def __str__(self) -> str:
        telling = self.telling
        called = f"{telling.function} ({telling.file}, line {telling.line})"
        if self.innermost == telling:
            return called
        return f"{called}, within {self.innermost.function} of {Path(self.innermost.file).name}"


def place_of(frames: Sequence[Frame]) -> CodePlace | None:
    """Return where a worker is, by its calls; None where PySpark itself waits for rows or for work."""
    called = takewhile(lambda one: not _PYSPARK.search(one.file), frames)
    within = [one for one in called if not one.file.endswith(_READS)]
    if not within:
        return None
    telling = next((one for one in within if not _LIBRARY.search(one.file)), within[-1])
    foreign = bool(_LIBRARY.search(telling.file) or _SLUICE.match(telling.file))
    return CodePlace(foreign, telling, within[0])
