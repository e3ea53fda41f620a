"""`python -m benchmarks.history`: a run with nothing new after few delivered files, and after a million."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psycopg2
import typer

from benchmarks.__main__ import FOLDER
from benchmarks.events import good
from benchmarks.ground import at_home, environment
from benchmarks.short import NAME
from etl import services
from etl.common.settings import Settings

CONTENT = good(0, 1)
FOLDERS = 1_000  # that the files lie in, at most
SEED = """
INSERT INTO sluice.delivery_input (delivery_id, pipeline, path, uri, size, mtime_ms, etag, source)
SELECT known.delivery_id, known.pipeline, replace(known.path, %(first)s, other), replace(known.uri, %(first)s, other),
    known.size, known.mtime_ms, NULL, known.source
FROM sluice.delivery_input AS known, unnest(%(others)s) AS other
"""


@dataclass(frozen=True, kw_only=True)
class History:
    """A pipeline that has delivered so many files; each process is measured as a whole."""

    settings: Settings
    files: int

    def make(self) -> None:
        """Deliver one file; let the ledger have the others as well, and Spark's checkpoint by `sluice recover`."""
        folders, each = min(FOLDERS, self.files), max(self.files // FOLDERS, 1)
        names = [f"dt=2026-{n // each:06d}/{n % each}.jsonl" for n in range(self.files)]
        landing = Path(self.settings.landing) / NAME
        for number in range(folders):
            (landing / f"dt=2026-{number:06d}").mkdir(parents=True)
        (landing / names[0]).write_text(CONTENT)
        self.sluice("run")
        moment = (landing / names[0]).stat().st_mtime_ns
        for name in names[1:]:
            (landing / name).write_text(CONTENT)
            os.utime(landing / name, ns=(moment, moment))
        dsn = services.find_postgres(self.settings)
        connection = psycopg2.connect(dsn)
        with connection, connection.cursor() as cursor:
            cursor.execute(SEED, {"first": names[0], "others": names[1:]})
        connection.autocommit = True
        connection.cursor().execute("ANALYZE sluice.delivery_input")
        connection.close()
        shutil.rmtree(self.settings.home / "checkpoints")
        self.sluice("recover")

    def sluice(self, command: str) -> tuple[float, float]:
        """Run a command of the pipeline; return its seconds and its peak of memory in MB."""
        started = time.monotonic()
        process = subprocess.Popen(
            [Path(sys.executable).with_name("sluice"), command, NAME],
            env=environment(self.settings),
            stdout=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        assert status == 0
        return time.monotonic() - started, used.ru_maxrss / 1024


def main(
    files: Annotated[int, typer.Option(help="that were delivered, beside 10")] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="measured rounds, after one that is thrown away")] = 5,
    folder: Annotated[Path, typer.Option(help="where events, services and jars are kept")] = FOLDER,
) -> None:
    """Measure both once a round, in turn, and print the ratio of their times and the difference of their memory.

    The first run has nothing to go by and compares everything; it is told apart.
    """
    with delivered(folder, 10) as few, delivered(folder, files) as many:
        first, *found = [(few.sluice("run"), many.sluice("run")) for _ in range(rounds + 1)]
    ratios = [after[0] / before[0] for before, after in found]
    more = [after[1] - before[1] for before, after in found]
    for place, some in zip((few, many), zip(*found, strict=True), strict=True):
        typer.echo(
            f"{place.files:,} delivered files: {statistics.median(seconds for seconds, _ in some):.2f} s"
        )
    (before, _), (after, _) = first
    typer.echo(f"the first run, which compares everything: {before:.2f} s and {after:.2f} s")
    typer.echo(
        f"ratio {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f}), limit 1.60 (goal 1.30);"
        f" {statistics.median(more):.0f} MB more, limit 50"
    )


@contextmanager
def delivered(folder: Path, files: int) -> Iterator[History]:
    """Yield a pipeline that has delivered so many files."""
    with at_home(folder, f"history-{files}") as settings:
        history = History(settings=settings, files=files)
        history.make()
        yield history


if __name__ == "__main__":
    typer.run(main)
