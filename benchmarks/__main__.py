"""`python -m benchmarks`: Sluice beside the usual way and beside its own parts, in one run."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.environments import python_with
from benchmarks.ground import CORES, HERE, Ground, prepared
from benchmarks.ours import Sluice
from benchmarks.parts import Parts
from benchmarks.peers import Dlt
from benchmarks.usual import Idempotent, Usual

FOLDER = Path(tempfile.gettempdir()) / "sluice-bench"
WHOLE = ("sluice", "plain", "malformed", "usual", "idempotent", "dlt")  # the ways that deliver
MALFORMED = 0.01  # share of the records, in the way of that name
console = Console(width=110)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One column of the comparison: `measure` does it once and returns the seconds that count."""

    name: str
    measure: Callable[[], float]
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def timed(action: Callable[[], object], before: Callable[[], object] = lambda: None) -> Callable[[], float]:
    """Measures `action` alone; `before` is not counted."""

    def measure() -> float:
        before()
        started = time.monotonic()
        action()
        return time.monotonic() - started

    return measure


def delivered(way: Sluice) -> Callable[[], float]:
    """The pass with its commit, as the receipt says; the query's start and end around it are not counted."""

    def measure() -> float:
        way.land()
        return way.deliver().seconds

    return measure


def ways(ground: Ground) -> dict[str, Way]:
    names = (ground.judged, "bench_plain", "bench_measured")
    judged, plain, measured = (Sluice(ground=ground, pipeline=name) for name in names)
    spoilt = Sluice(ground=replace(ground, malformed=MALFORMED), pipeline=ground.judged)
    usual, idempotent, parts = Usual(ground), Idempotent(ground), Parts(ground)
    return {
        "sluice": Way(name="Sluice: the one pass with its commit", measure=delivered(judged)),
        "malformed": Way(name=f"Sluice with {MALFORMED:.0%} malformed records", measure=delivered(spoilt)),
        "plain": Way(name="Sluice without a suite", measure=delivered(plain)),
        "measured": Way(name="Sluice with metrics of four columns", measure=delivered(measured)),
        "usual": Way(name="the usual way, well tuned", measure=timed(usual.deliver, usual.prepare)),
        "idempotent": Way(
            name="the usual way, idempotent, with quarantine",
            measure=timed(idempotent.deliver, idempotent.prepare),
        ),
        "dlt": Way(name="dlt: Arrow to PostgreSQL and to Parquet, no rules", measure=Dlt(ground).deliver),
        "parse": Way(name="part: parse", measure=timed(parts.parse)),
        "handover": Way(name="part: parse + Arrow hand-over", measure=timed(parts.hand_over)),
        "whole": Way(
            name="part: the same, by a reader that loses no record", measure=timed(parts.hand_over_whole)
        ),
        "from_json": Way(name="part: records of a topic by from_json", measure=timed(parts.from_json)),
        "records": Way(name="part: the same by Sluice's reader", measure=timed(parts.records)),
        "parquet": Way(name="part: Parquet to S3", measure=timed(parts.parquet)),
        "copy": Way(name="part: COPY into a table", measure=timed(parts.copy, parts.prepare_copy)),
    }


def main(
    rows: Annotated[int, typer.Option(help="events of a batch")] = 2_000_000,
    rounds: Annotated[int, typer.Option(help="measured rounds, after one that is thrown away")] = 5,
    files: Annotated[int, typer.Option(help="files of the batch")] = 16,
    only: Annotated[str, typer.Option(help="these ways alone, such as sluice,usual")] = "",
    kind: Annotated[
        str, typer.Option(help="jsonl, or csv with --only sluice,usual,handover,whole")
    ] = "jsonl",
    folder: Annotated[Path, typer.Option(help="where events, services and jars are kept")] = FOLDER,
    jars: Annotated[Path | None, typer.Option(help="where resolved jars are; default: in the folder")] = None,
    picture: Annotated[Path | None, typer.Option(help="draw whole jobs as SVG, to this file")] = None,
) -> None:
    """Measure every way once a round, in turn, and print the medians."""
    with prepared(folder, rows=rows, files=files, jars=jars, kind=kind) as ground:
        chosen = ways(ground)
        if only:
            chosen = {key: chosen[key] for key in only.split(",")}
        for turn in range(rounds + 1):
            for key, way in chosen.items():
                ground.rest()
                seconds = way.measure()
                console.print(f"round {turn}{' (thrown away)' if turn == 0 else ''}: {key} {seconds:.2f} s")
                if turn:
                    way.seconds.append(seconds)
    console.print(figures(chosen, rows), ratios(chosen))
    if picture is not None:
        draw(picture, [chosen[key] for key in WHOLE if key in chosen], rows, folder)


def draw(picture: Path, ways: Sequence[Way], rows: int, folder: Path) -> None:
    """Draw the median of each way, with its shortest and its longest round."""
    job = {
        "title": f"seconds for {rows:,} events, {CORES} cores",
        "to": str(picture),
        "ways": [
            {
                "name": way.name,
                "ours": way.name.startswith("Sluice"),
                "seconds": [min(way.seconds), way.median, max(way.seconds)],
            }
            for way in ways
        ],
    }
    drawing = [python_with("plot", folder), HERE / "plot.py"]
    subprocess.run(drawing, input=json.dumps(job), text=True, check=True)


def figures(found: dict[str, Way], rows: int) -> Table:
    table = Table(title=f"{rows:,} events, median of {len(next(iter(found.values())).seconds)} rounds")
    for name in ("way", "seconds", "from", "to", "rows/s"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for way in found.values():
        seconds = (way.median, min(way.seconds), max(way.seconds))
        table.add_row(way.name, *(f"{value:.2f}" for value in seconds), f"{rows / way.median:,.0f}")
    return table


def ratios(found: dict[str, Way]) -> Table:
    """Return each ratio within one round, so that what slows a whole round down cancels out; then the median."""
    table = Table(title="ratios within a round")
    for name in ("ratio", "median", "from", "to", "limit", ""):
        table.add_column(name, justify="left" if name == "ratio" else "right")
    rounds = [
        dict(zip(found, seconds, strict=True))
        for seconds in zip(*(w.seconds for w in found.values()), strict=True)
    ]
    for name, limit, ratio in RATIOS:
        try:
            values = [ratio(seconds) for seconds in rounds]
        except KeyError:  # a way that was not chosen
            continue
        median = statistics.median(values)
        within = "" if limit is None else "reached" if median <= limit else "[red]missed"
        shown = "" if limit is None else f"{limit:.2f}"
        table.add_row(name, *(f"{value:.2f}" for value in (median, min(values), max(values))), shown, within)
    return table


def _parts(seconds: dict[str, float]) -> float:
    """parse + (hand-over - parse) + Parquet + COPY."""
    return seconds["handover"] + seconds["parquet"] + seconds["copy"]


def _whole_parts(seconds: dict[str, float]) -> float:
    """Return the same parts with a reader that parses every record: a pass without rules, guards and commit."""
    return seconds["whole"] + seconds["parquet"] + seconds["copy"]


RATIOS: tuple[tuple[str, float | None, Callable[[dict[str, float]], float]], ...] = (
    ("Sluice / the usual way (goal 0.45)", 0.55, lambda s: s["sluice"] / s["usual"]),
    ("Sluice / the usual way, idempotent (goal 0.35)", 0.45, lambda s: s["sluice"] / s["idempotent"]),
    ("Sluice / dlt (goal 0.33)", 0.45, lambda s: s["sluice"] / s["dlt"]),
    ("Sluice / the sum of its parts (goal 1.15)", 1.30, lambda s: s["sluice"] / _parts(s)),
    (
        "the reader / Spark's own source, with hand-over (goal 0.75)",
        0.90,
        lambda s: s["whole"] / s["handover"],
    ),
    ("a topic's records: the reader / from_json (goal 0.40)", 0.60, lambda s: s["records"] / s["from_json"]),
    ("those parts, no record lost / the usual way", None, lambda s: _whole_parts(s) / s["usual"]),
    ("Sluice / those parts, no record lost", None, lambda s: s["sluice"] / _whole_parts(s)),
    ("validation: with / without a suite (goal 1.05)", 1.10, lambda s: s["sluice"] / s["plain"]),
    ("1 % malformed: with / without (goal 1.05)", 1.15, lambda s: s["malformed"] / s["sluice"]),
    ("metrics of four columns: with / without", 1.15, lambda s: s["measured"] / s["sluice"]),
)

if __name__ == "__main__":
    typer.run(main)
