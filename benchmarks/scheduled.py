"""`python -m benchmarks.scheduled`: from the minute that a schedule names to the first delivered row, and from a shell."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psycopg2
import typer

from benchmarks.__main__ import FOLDER
from benchmarks.events import good
from benchmarks.ground import at_home, environment
from benchmarks.short import RECORDS
from etl import services
from etl.airflow.api import sign_in
from etl.airflow.local.stack import stop, up
from etl.common.settings import Settings

NAME = "bench_minutely"
MINUTE = 60
PATIENCE = 300  # seconds
COMMITTED = "SELECT extract(epoch FROM max(committed_at)), count(*) FROM sluice.delivery WHERE pipeline = %s"


@dataclass(kw_only=True)
class Scheduled:
    """A pipeline of one small file a minute."""

    settings: Settings
    dsn: str
    landed: int = 0

    def land(self) -> None:
        folder = Path(self.settings.landing) / NAME
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.landed:06d}.jsonl").write_text(good(RECORDS * self.landed, RECORDS))
        self.landed += 1

    def by_shell(self) -> float:
        """Return the seconds from the start of a run to its commit."""
        self.land()
        began = time.time()
        command = [Path(sys.executable).with_name("sluice"), "run", NAME]
        subprocess.run(command, env=environment(self.settings), check=True, capture_output=True)
        return self.committed() - began

    def by_schedule(self) -> float:
        """Return the seconds from the next minute, at which a run is due, to the commit of what has landed before it."""
        due = (time.time() // MINUTE + 1) * MINUTE
        time.sleep(max(due - 1 - time.time(), 0))  # when the run of the last minute has ended
        self.land()
        return self.committed() - due

    def committed(self) -> float:
        """Wait until all that has landed is delivered; return the moment of the last commit."""
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            with psycopg2.connect(self.dsn) as connection, connection.cursor() as cursor:
                cursor.execute(COMMITTED, (NAME,))
                moment, deliveries = cursor.fetchone() or (0, 0)
            connection.close()
            if deliveries == self.landed:
                return float(moment)
            time.sleep(0.5)
        raise TimeoutError(f"of {self.landed} files {deliveries} are delivered after {PATIENCE} s")


def main(
    rounds: Annotated[int, typer.Option(help="measured runs of each, after one that is thrown away")] = 3,
    folder: Annotated[Path, typer.Option(help="where services and what they keep are")] = FOLDER,
) -> None:
    """Print both medians and their ratio; Airflow's own start is not counted."""
    with at_home(folder, "scheduled") as settings:
        one = Scheduled(settings=settings, dsn=services.up(settings).postgres)
        shell = _measured(one.by_shell, rounds)
        os.environ |= environment(settings)
        try:
            airflow = up(settings)
            api = sign_in(airflow.address, airflow.login)
            while not api.dag_is_known(NAME):
                time.sleep(1)
            api.unpause(NAME)
            scheduled = _measured(one.by_schedule, rounds)
        finally:
            stop(settings)
    typer.echo(
        f"from a shell {statistics.median(shell):.1f} s, by its schedule {statistics.median(scheduled):.1f} s"
    )
    typer.echo(f"ratio {statistics.median(scheduled) / statistics.median(shell):.2f}, limit 1.50")


def _measured(way: Callable[[], float], rounds: int) -> list[float]:
    return [way() for _ in range(rounds + 1)][1:]


if __name__ == "__main__":
    typer.run(main)
