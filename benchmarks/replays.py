"""`python -m benchmarks.replays`: one day replaced in a table of 30 days and in one of 365, each day a delivery."""

from __future__ import annotations

import datetime as dt
import os
import statistics
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.__main__ import FOLDER
from benchmarks.ground import Ground, prepared
from etl.pipeline import load_pipeline
from etl.plan import Chosen, plan
from etl.replay import replay
from etl.run import run

NAME = "bench_daily"
FIRST = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
SIZES = (30, 365)  # days in the table


def main(
    rows: Annotated[int, typer.Option(help="events of a day")] = 1_000,
    rounds: Annotated[int, typer.Option(help="measured replays, after one that is thrown away")] = 5,
    folder: Annotated[Path, typer.Option(help="where events, services and jars are kept")] = FOLDER,
    jars: Annotated[Path | None, typer.Option(help="where resolved jars are; default: in the folder")] = None,
) -> None:
    """The seconds from the plan to the end, Spark's start not counted, and their ratio (limit 1.30)."""
    with prepared(folder, rows=SIZES[-1] * rows, files=SIZES[-1], jars=jars) as ground:
        medians = []
        for days in SIZES:
            _deliver(ground, days)
            seconds = [_replaced(ground, day=days // 2) for _ in range(rounds + 1)][1:]
            medians.append(statistics.median(seconds))
            typer.echo(f"{days} days: {medians[-1]:.2f} s (from {min(seconds):.2f} to {max(seconds):.2f})")
        typer.echo(f"{SIZES[1]} days / {SIZES[0]} days: {medians[1] / medians[0]:.2f} (limit 1.30)")


def _deliver(ground: Ground, days: int) -> None:
    """The days up to `days`, in the table before or not, one batch each."""
    landing = Path(ground.place.settings.landing) / NAME
    for number, path in enumerate(ground.events[:days]):
        target = landing / f"dt={FIRST + dt.timedelta(days=number):%Y-%m-%d}" / path.name
        if not target.exists():
            target.parent.mkdir(parents=True)
            os.link(path, target)
    done = run(ground.place, load_pipeline(NAME, ground.place.settings.pipelines), spark=ground.spark)
    assert done.batches == days - (0 if days == SIZES[0] else SIZES[0])


def _replaced(ground: Ground, *, day: int) -> float:
    ground.rest()
    pipeline = load_pipeline(NAME, ground.place.settings.pipelines)
    start = FIRST + dt.timedelta(days=day)
    began = time.monotonic()
    planned = plan(ground.place, pipeline, Chosen(interval=(start, start + dt.timedelta(days=1))))
    done = replay(ground.place, pipeline, planned, who="benchmark", spark=ground.spark)
    assert len(done.replaced) == 1
    return time.monotonic() - began


if __name__ == "__main__":
    typer.run(main)
