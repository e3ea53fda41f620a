"""`python -m benchmarks.memory`: the most memory that a run takes for 1,000,000 rows in a batch, and for 8,000,000.

That is of all processes that the command starts, but for the services; what several of them share counts once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import psutil
import typer

from benchmarks.__main__ import FOLDER
from benchmarks.events import generate
from benchmarks.ground import at_home, environment

NAME = "bench_judged"
EVERY = 0.5  # seconds: a look at a tree of processes takes a few hundredths


def main(
    rows: Annotated[int, typer.Option(help="events of the smaller batch")] = 1_000_000,
    times: Annotated[int, typer.Option(help="as many has the larger one, of the same files again")] = 8,
    folder: Annotated[Path, typer.Option(help="where events, services and jars are kept")] = FOLDER,
) -> None:
    """Run each in a process of its own and print both peaks and their ratio."""
    folder.mkdir(parents=True, exist_ok=True)
    events = generate(folder, rows=rows, files=16, kind="jsonl", malformed=0)
    peaks = []
    for again in (1, times):
        with at_home(folder, "memory") as settings:
            landing = Path(settings.landing) / NAME
            landing.mkdir(parents=True)
            for number in range(again):
                for path in events:
                    os.link(path, landing / f"{number}-{path.name}")
            peaks.append(_peak(environment(settings)))
        typer.echo(f"{again * rows:,} rows: {peaks[-1]:,.0f} MB")
    typer.echo(f"ratio {peaks[1] / peaks[0]:.2f}, limit 1.30")


def _peak(variables: dict[str, str]) -> float:
    """Run the pipeline; return the most that its processes had together, in MB."""
    command = [Path(sys.executable).with_name("sluice"), "run", NAME]
    most = 0.0
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) as running:
        root = psutil.Process(running.pid)
        while running.poll() is None:
            most = max(most, _held(root))
            time.sleep(EVERY)
    assert running.returncode == 0
    return most


def _held(root: psutil.Process) -> float:
    held = 0
    with suppress(psutil.NoSuchProcess):
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it has just ended
                held += process.memory_full_info().pss
    return held / 1e6


if __name__ == "__main__":
    typer.run(main)
