"""`python -m benchmarks.short`: whole processes of short runs beside what they cost at least, and warm small batches."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.__main__ import FOLDER
from benchmarks.events import good
from benchmarks.ground import CORES, at_home, environment
from etl import services
from etl.common.settings import Settings
from etl.pipeline import load_pipeline
from etl.runs.run import run
from etl.runs.workspace import Workspace

NAME = "bench_daily"
RECORDS = 24  # of a file
# As short as a job that hands rows to Python can be, from Spark's own script and without an archive of classes.
BARE = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[{CORES}]").getOrCreate()
spark.range(8).mapInArrow(lambda batches: batches, "id long").collect()
spark.stop()
"""
IMPORTS = "import pyarrow, psycopg2, pyiceberg"
WARM = 20  # batches of one run, of which the later half is measured


@dataclass(kw_only=True)
class Short:
    """A pipeline of one small file a batch, and the commands that are measured."""

    settings: Settings
    landed: int = 0

    def land(self) -> None:
        folder = Path(self.settings.landing) / NAME / f"dt=2026-11-01-{self.landed:06d}"
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_text(good(RECORDS * self.landed, RECORDS))
        self.landed += 1

    def sluice(self) -> None:
        self._process(str(Path(sys.executable).with_name("sluice")), "run", NAME)

    def python(self, code: str) -> None:
        self._process(sys.executable, "-c", code)

    def _process(self, *command: str) -> None:
        subprocess.run(command, env=environment(self.settings), check=True, capture_output=True)


def main(
    rounds: Annotated[int, typer.Option(help="measured rounds, after one that is thrown away")] = 5,
    folder: Annotated[Path, typer.Option(help="where events, services and jars are kept")] = FOLDER,
) -> None:
    """Measure every process once a round, in turn, and print seconds and ratios; then the batches of a run."""
    with at_home(folder, "short") as settings:
        short = Short(settings=settings)
        ways: dict[str, Callable[[], None]] = {
            "one more file": short.sluice,
            "a bare Spark session with its first Arrow job": lambda: short.python(BARE),
            "nothing new": short.sluice,
            IMPORTS: lambda: short.python(IMPORTS),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            short.land()
            for name, way in ways.items():
                started = time.monotonic()
                way()
                if turn:
                    seconds[name].append(time.monotonic() - started)
        for name, some in seconds.items():
            typer.echo(f"{name}: {statistics.median(some):.2f} s (from {min(some):.2f} to {max(some):.2f})")
        file, bare, nothing, imports = seconds.values()
        _tell("one more file / bare Spark session (goal 0.60)", file, bare, 0.75)
        _tell("nothing new / imports (goal 1.50)", nothing, imports, 2.50)
        _warm(short)


def _tell(what: str, some: list[float], others: list[float], limit: float) -> None:
    ratios = [one / other for one, other in zip(some, others, strict=True)]
    median = statistics.median(ratios)
    within = "reached" if median <= limit else "missed"
    typer.echo(
        f"{what}: {median:.2f} (from {min(ratios):.2f} to {max(ratios):.2f}), limit {limit:.2f}: {within}"
    )


def _warm(short: Short) -> None:
    """Deliver many small batches in one run; the time from one to the next is all that a batch costs."""
    for _ in range(WARM):
        short.land()
    place = Workspace(settings=short.settings, services=services.up(short.settings))
    moments = list[float]()
    pipeline = load_pipeline(NAME, short.settings.pipelines)
    run(place, pipeline, progress=lambda _: moments.append(time.monotonic()))
    assert len(moments) == WARM
    some = [after - before for before, after in pairwise(moments[WARM // 2 - 1 :])]
    median = statistics.median(some)
    within = "reached" if median <= 0.6 else "missed"
    typer.echo(
        f"warm batch of {RECORDS} records: {median:.2f} s (from {min(some):.2f} to {max(some):.2f}),"
        f" limit 0.60 (goal 0.40): {within}"
    )


if __name__ == "__main__":
    typer.run(main)
