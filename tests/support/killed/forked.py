"""Processes for runs that are killed, forked from one that has imported what a run needs: a quarter of a short run.

A forked run has a session, an environment, a folder, an output and children of its own, Spark's JVM first. Other
than one that was started, it ends without what Python does at exit.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.killed.imported"])


@dataclass(frozen=True, kw_only=True)
class Forked:
    """A process, as the one that started it sees it."""

    process: ForkServerProcess

    @classmethod
    def start(
        cls, module: str, words: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path
    ) -> Forked:
        """`python -m module words…`, as far as its `main` is concerned."""
        process = _FORKS.Process(target=_main, args=(module, words, dict(environment), folder, log))
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


def _main(module: str, words: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> None:
    os.setsid()
    with log.open("wb") as out:
        for standard in (1, 2):
            os.dup2(out.fileno(), standard)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *words]
    importlib.import_module(module).main()
