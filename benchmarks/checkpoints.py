"""`python -m benchmarks.checkpoints`: what the checkpoint of a pipeline takes that has read 100,000 files.

Its own batches come at another pace here than a file a minute, so that Spark is told not to spare what is younger than
ten minutes: of a file a minute that is one copy of its list more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.__main__ import FOLDER
from benchmarks.history import CONTENT, delivered
from benchmarks.short import NAME
from etl.spark.checkpoint.format import COMPACTED
from etl.spark.session import RETAINED_BATCHES

SPARED = '{"spark.sql.streaming.fileSource.log.cleanupDelay": "1s"}'
MOST = 500  # MB


def main(
    files: Annotated[int, typer.Option(help="that were delivered")] = 100_000,
    folder: Annotated[Path, typer.Option(help="where events, services and jars are kept")] = FOLDER,
) -> None:
    """Deliver batches of one file until the checkpoint has as many as it keeps, and print its size."""
    with delivered(folder, files) as history:
        home = history.settings.home
        landed = Path(history.settings.landing) / NAME / "dt=2027-01-01"
        landed.mkdir()
        for number in range(RETAINED_BATCHES + 2 * COMPACTED):
            (landed / f"{number}.jsonl").write_text(CONTENT)
        os.environ["SLUICE_SPARK_CONF"] = SPARED
        history.sluice("run")
        kept = [path for path in (home / "checkpoints").rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in kept) / 1e6
    typer.echo(f"after {files:,} files: {size:.0f} MB in {len(kept)} files, limit {MOST}")


if __name__ == "__main__":
    typer.run(main)
