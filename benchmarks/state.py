"""`python -m benchmarks.state`: batches of the same size while 10,000 keys are kept, and while 1,000,000 are."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.__main__ import FOLDER
from benchmarks.ground import Ground, prepared
from etl.delivery.batch import Receipt
from etl.pipeline import load_pipeline
from etl.runs.run import run

NAME = "bench_keys"
SIZES = (10_000, 1_000_000)  # keys that are kept


def main(
    rows: Annotated[int, typer.Option(help="events of a batch")] = 20_000,
    rounds: Annotated[int, typer.Option(help="measured batches, after one that is thrown away")] = 5,
    folder: Annotated[Path, typer.Option(help="where events, services and jars are kept")] = FOLDER,
    jars: Annotated[Path | None, typer.Option(help="where resolved jars are; default: in the folder")] = None,
) -> None:
    """The seconds of a batch with its commit, their ratio (limit 2), and the JVM's heap after the last one."""
    drawn = random.Random(7)
    with prepared(folder, rows=1_000, files=1, jars=jars) as ground:
        medians, known = [], 0
        for keys in SIZES:
            _deliver(ground, {f"keys-{keys}": range(known, keys)})
            known = keys
            files = {
                f"{keys}-{number}": [drawn.randrange(keys) for _ in range(rows)]
                for number in range(rounds + 1)
            }
            seconds = [one.seconds for one in _deliver(ground, files)][1:]  # the first reads what is kept
            medians.append(statistics.median(seconds))
            typer.echo(
                f"{keys:,} keys: {medians[-1]:.2f} s (from {min(seconds):.2f} to {max(seconds):.2f}), heap {_heap(ground)}"
            )
        typer.echo(f"{SIZES[1]:,} keys / {SIZES[0]:,} keys: {medians[1] / medians[0]:.2f} (limit 2)")


def _deliver(ground: Ground, files: Mapping[str, Iterable[int]]) -> list[Receipt]:
    """Deliver in one run, one batch per file."""
    landing = Path(ground.place.settings.landing) / NAME
    landing.mkdir(parents=True, exist_ok=True)
    for name, keys in files.items():
        lines = (
            f'{{"key": {key}, "at": "2025-01-01T00:00:{number % 60:02}Z"}}\n'
            for number, key in enumerate(keys)
        )
        (landing / f"{name}.jsonl").write_text("".join(lines))
    ground.rest()
    receipts = list[Receipt]()
    pipeline = load_pipeline(NAME, ground.place.settings.pipelines)
    run(ground.place, pipeline, spark=ground.spark, progress=receipts.append)
    assert len(receipts) == len(files)
    return receipts


def _heap(ground: Ground) -> str:
    jvm: Any = ground.spark.sparkContext._jvm
    jvm.System.gc()
    now = jvm.Runtime.getRuntime()
    used = now.totalMemory() - now.freeMemory()
    return f"{used / 2**20:,.0f} MB of at most {now.maxMemory() / 2**20:,.0f}"


if __name__ == "__main__":
    typer.run(main)
