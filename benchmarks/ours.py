"""Sluice itself: `etl.runs.run` on a batch that has just landed."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from benchmarks.ground import Ground
from etl.delivery.batch import Receipt
from etl.pipeline import load_pipeline
from etl.runs.run import run


@dataclass(frozen=True, kw_only=True)
class Sluice:
    """One of the pipelines in benchmarks/pipelines."""

    ground: Ground
    pipeline: str

    def land(self) -> None:
        """Link the events as new files: the next run finds one batch. The last round's are removed."""
        folder = self.ground.place.settings.home / "landing" / self.pipeline
        rounds = sorted(folder.glob("*"))
        number = int(rounds[-1].name) + 1 if rounds else 0
        target = folder / f"{number:06d}"
        target.mkdir(parents=True)
        for path in self.ground.events:
            os.link(path, target / path.name)
        for old in rounds:
            shutil.rmtree(old)

    def deliver(self) -> Receipt:
        """Run to the end; the receipt's seconds are those of the one pass with its commit."""
        place, receipts = self.ground.place, list[Receipt]()
        pipeline = load_pipeline(self.pipeline, place.settings.pipelines)
        run(place, pipeline, spark=self.ground.spark, progress=receipts.append)
        (receipt,) = receipts
        assert receipt.rows_in == self.ground.rows
        return receipt
