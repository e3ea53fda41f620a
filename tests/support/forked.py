"""Commands and runs in processes that are forked from one which has imported what they need: half of a short run.

Such a process has a session, an environment, a folder, an output and children of its own, Spark's JVM first. Other
than one that was started, it ends without what Python does at exit. tests/service/test_commands.py starts commands.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

PATIENCE = 240  # seconds; nothing is decided by it, a test that waits so long has failed
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.imported"])


@dataclass(frozen=True, kw_only=True)
class Forked:
    """A process, as the one that started it sees it."""

    process: ForkServerProcess

    @classmethod
    def start(
        cls,
        module: str,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        out: Path,
        err: Path | None = None,
        read: Path | None = None,
    ) -> Forked:
        """Start what `python -m module words…` does, as far as its `main` is concerned; `err` is `out` unless given."""
        process = _FORKS.Process(
            target=_main, args=(module, words, dict(environment), folder, out, err, read)
        )
        process.start()
        return cls(process=process)

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def poll(self) -> int | None:
        """Return the process's exit code, negative for a signal; None while it runs."""
        return self.process.exitcode

    def wait(self, patience: float) -> int:
        self.process.join(patience)
        code = self.process.exitcode
        assert code is not None, f"process {self.pid} still runs after {patience} s"
        return code


def sluice(
    words: Sequence[str], *, environment: Mapping[str, str], folder: Path, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command `sluice` to its end, or kill it after PATIENCE; return its exit code and what it wrote.

    It reads `given`.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-") as kept:
        out, err, read = Path(kept, "out"), Path(kept, "err"), Path(kept, "in")
        read.write_text(given)
        command = Forked.start(
            "etl.cli", words, environment=environment, folder=folder, out=out, err=err, read=read
        )
        try:
            code = command.wait(PATIENCE)
        finally:
            command.process.kill()  # it has ended, unless it was waited for in vain
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


def _main(
    module: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    out: Path,
    err: Path | None,
    read: Path | None,
) -> None:
    os.setsid()
    if read is not None:
        with read.open("rb") as opened:
            os.dup2(opened.fileno(), 0)
    with out.open("wb") as opened:
        for standard in (1, 2):
            os.dup2(opened.fileno(), standard)
    if err is not None:
        with err.open("wb") as opened:
            os.dup2(opened.fileno(), 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *words]
    importlib.import_module(module).main()
