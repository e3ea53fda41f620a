"""`python -m benchmarks.replays`: one day replaced in a table of 30 days and in one of 365, each day a delivery."""

from __future__ import annotations

import datetime as dt
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.__main__ import FOLDER
from benchmarks.events import DAY
from benchmarks.ground import Ground, prepared
from etl.pipeline import Pipeline, load_pipeline
from etl.runs.replay.plan import Selection, plan
from etl.runs.replay.replay import replay
from etl.runs.run import run

FIRST = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
SIZES = (30, 365)  # days in the table
LOST = 10  # each replay with fewer rows loses another one in so many


@dataclass(kw_only=True)
class Daily:
    """A pipeline to which the days are delivered, one after the other."""

    ground: Ground
    name: str
    days: int = 0
    rounds: int = 0

    @property
    def pipeline(self) -> Pipeline:
        return load_pipeline(self.name, self.ground.place.settings.pipelines)

    def path(self, day: int) -> Path:
        landing = Path(self.ground.place.settings.landing)
        return landing / self.name / f"dt={FIRST + dt.timedelta(days=day):%Y-%m-%d}" / "events.jsonl"

    def deliver(self, days: int) -> None:
        """So many in all, one batch each."""
        for day in range(self.days, days):
            self.path(day).parent.mkdir(parents=True)
            os.link(self.ground.events[day], self.path(day))
        assert run(self.ground.place, self.pipeline, spark=self.ground.spark).batches == days - self.days
        self.days = days

    def of_paths(self) -> None:
        """The middle day, by the interval of its path."""
        self._replace(self.days // 2)

    def of_a_column(self) -> None:
        """The middle day, by the interval of its events' moments."""
        width = dt.timedelta(days=1) / len(self.ground.events)  # of a file; each begins and ends within
        start, edge = DAY + width * (self.days // 2), width / 10
        by_column = replace(self.pipeline, interval="event_time")
        self._replay(by_column, Selection(interval=(start + edge, start + width - edge)))

    def newest(self) -> None:
        """The newest day, by the interval of its path."""
        self._replace(self.days - 1)

    def newest_with_fewer_rows(self) -> None:
        """The newest day, of which other rows are missing now than the last time."""
        self.rounds += 1
        lines = self.ground.events[self.days - 1].read_text().splitlines(keepends=True)
        path = self.path(self.days - 1)
        path.unlink()  # it is a link to what other measurements read
        path.write_text("".join(one for n, one in enumerate(lines) if n // 5 % LOST != self.rounds % LOST))
        self._replace(self.days - 1, accept_changed=True)

    def _replace(self, day: int, *, accept_changed: bool = False) -> None:
        start = FIRST + dt.timedelta(days=day)
        chosen = Selection(interval=(start, start + dt.timedelta(days=1)))
        self._replay(self.pipeline, chosen, accept_changed=accept_changed)

    def _replay(self, pipeline: Pipeline, chosen: Selection, *, accept_changed: bool = False) -> None:
        place, spark = self.ground.place, self.ground.spark
        done = replay(
            place,
            pipeline,
            plan(place, pipeline, chosen),
            who="benchmark",
            accept_changed=accept_changed,
            spark=spark,
        )
        assert len(done.replaced) == 1


def main(
    rows: Annotated[int, typer.Option(help="events of a day")] = 1_000,
    rounds: Annotated[int, typer.Option(help="measured replays, after one that is thrown away")] = 5,
    folder: Annotated[Path, typer.Option(help="where events, services and jars are kept")] = FOLDER,
    jars: Annotated[Path | None, typer.Option(help="where resolved jars are; default: in the folder")] = None,
) -> None:
    """The seconds from the plan to the end, Spark's start not counted, and their ratio (limit 1.30)."""
    with prepared(folder, rows=SIZES[-1] * rows, files=SIZES[-1], jars=jars) as ground:
        daily, devices = (Daily(ground=ground, name=f"bench_{name}") for name in ("daily", "devices"))
        ways = {
            "append, by paths": (daily, daily.of_paths),
            "append, by a column": (daily, daily.of_a_column),
            "upsert, all keys again": (devices, devices.newest),
            f"upsert, a key in {LOST} lost": (devices, devices.newest_with_fewer_rows),
        }
        medians: dict[str, list[float]] = {name: [] for name in ways}
        for days in SIZES:
            for table in (daily, devices):
                table.deliver(days)
            for name, (table, again) in ways.items():
                seconds = [_timed(table, again) for _ in range(rounds + 1)][1:]
                medians[name].append(statistics.median(seconds))
                typer.echo(
                    f"{name}: {days} days: {medians[name][-1]:.2f} s (from {min(seconds):.2f} to {max(seconds):.2f})"
                )
        for name, (short, long) in medians.items():
            typer.echo(f"{name}: {SIZES[1]} days / {SIZES[0]} days: {long / short:.2f} (limit 1.30)")


def _timed(table: Daily, again: Callable[[], None]) -> float:
    table.ground.rest()
    began = time.monotonic()
    again()
    return time.monotonic() - began


if __name__ == "__main__":
    typer.run(main)
