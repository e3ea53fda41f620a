"""`python -m benchmarks.pages`: how long the Data quality pages take over 10,000 batches of 30 rules."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import psycopg2
import typer

from etl import services
from etl.airflow.pages import columns, held_rows, pages
from etl.airflow.pages.held_rows import Wanted
from etl.airflow.pages.records import reading
from etl.airflow.pages.render import Frame, Page
from etl.common.database import Cursor
from etl.common.migrations import migrate
from etl.common.settings import Settings
from tests.support.pages.history import seed

GOAL = 0.3  # seconds
RULE = "rule 1 about a column of the feed"
BELOW = Frame(up="../")


def drawn(batches: int) -> dict[str, Callable[[Cursor], Page]]:
    old = Wanted(rule=RULE, status=None, before=(batches // 2, 2**63 - 1))
    return {
        "all pipelines": lambda cursor: pages.overview(cursor, lambda names: names, Frame()),
        "pipeline": lambda cursor: pages.pipeline(cursor, "feed", Frame()),
        "pipeline, long ago": lambda cursor: pages.pipeline(cursor, "feed", Frame(), before=batches // 2),
        "rule": lambda cursor: pages.rule(cursor, "feed", Frame(), known_by=RULE),
        "column": lambda cursor: columns.column(cursor, "feed", Frame(), column="c3"),
        "run": lambda cursor: pages.dag_run(cursor, "feed", Frame(), dag="feed", run_id="scheduled__99"),
        "batch": lambda cursor: pages.batch(cursor, "feed", BELOW, delivery=batches),
        "quarantine": lambda cursor: held_rows.quarantine(cursor, "feed", Frame(), wanted=Wanted()),
        "quarantine, long ago": lambda cursor: held_rows.quarantine(cursor, "feed", Frame(), wanted=old),
        "row": lambda cursor: held_rows.held_row(cursor, "feed", BELOW, number=1),
    }


def main(
    batches: Annotated[int, typer.Option(help="in the history")] = 10_000,
    rules: Annotated[int, typer.Option(help="of each batch")] = 30,
    rounds: Annotated[int, typer.Option(help="of which the median counts; the first one is left out")] = 9,
) -> None:
    """Draw every page again and again, each with a connection of its own, as a request has it."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        Path(folder).chmod(0o711)  # the embedded PostgreSQL's system user passes through
        settings = Settings(home=Path(folder) / "home", lake="s3://none")  # PostgreSQL alone
        try:
            dsn = services.up(settings).postgres
            migrate(dsn)
            seed(dsn, "feed", batches=batches, rules=rules)
            _settle(dsn)
            _measure(dsn, drawn(batches), rounds)
        finally:
            services.down(settings)


def _measure(dsn: str, makes: dict[str, Callable[[Cursor], Page]], rounds: int) -> None:
    typer.echo("| page | median ms | to | kB |\n|---|---|---|---|")
    for name, make in makes.items():
        taken = []
        for _ in range(rounds + 1):
            started = time.monotonic()
            with reading(dsn) as cursor:
                size = len(make(cursor).html.encode())
            taken.append(time.monotonic() - started)
        median = statistics.median(taken[1:])
        missed = "" if median <= GOAL else " **missed**"
        typer.echo(
            f"| {name} | {median * 1000:.0f}{missed} | {max(taken[1:]) * 1000:.0f} | {size / 1000:.0f} |"
        )


def _settle(dsn: str) -> None:
    """Write everything to disk before anything is measured."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM (ANALYZE) {', '.join(TABLES)}")
    connection.close()


TABLES = (
    "sluice.quality_rule",
    "sluice.quality",
    "sluice.delivery",
    "sluice.quarantine",
    "sluice.batch_progress",
)


if __name__ == "__main__":
    typer.run(main)
