"""`python -m benchmarks.commits`: what the commit of a pipeline's 100th batch takes, and that of its 10,000th."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.__main__ import FOLDER
from benchmarks.events import good
from benchmarks.ground import prepared
from benchmarks.short import NAME, RECORDS
from etl.delivery.batch import Receipt
from etl.pipeline import load_pipeline
from etl.runs.run import run

EARLY = 100  # the batch that the last one is compared with
AROUND = 20  # batches of which each of the two is the last


def main(
    batches: Annotated[int, typer.Option(help="of one file each, in one run")] = 10_000,
    folder: Annotated[Path, typer.Option(help="where events, services and jars are kept")] = FOLDER,
    jars: Annotated[Path | None, typer.Option(help="where resolved jars are; default: in the folder")] = None,
) -> None:
    """Print the medians of both, with drafts and transaction, and their ratio."""
    with prepared(folder, rows=RECORDS, files=1, jars=jars) as ground:
        settings = ground.place.settings
        landing = Path(settings.landing) / NAME / "dt=2026-11-01"
        landing.mkdir(parents=True)
        for number in range(batches):
            (landing / f"{number:06d}.jsonl").write_text(good(RECORDS * number, RECORDS))
        receipts = list[Receipt]()
        run(
            ground.place,
            load_pipeline(NAME, settings.pipelines),
            spark=ground.spark,
            progress=receipts.append,
        )
    early, late = (_median(receipts[end - AROUND : end]) for end in (EARLY, batches))
    typer.echo(f"commit of batch {EARLY}: {early:.0f} ms, of batch {batches:,}: {late:.0f} ms")
    typer.echo(f"ratio {late / early:.2f}, limit 1.50")


def _median(receipts: Sequence[Receipt]) -> float:
    return statistics.median(one.phases["draft"] + one.phases["transaction"] for one in receipts)


if __name__ == "__main__":
    typer.run(main)
