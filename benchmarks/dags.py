"""`python -m benchmarks.dags`: how long Airflow's DAG processor needs for a folder of many pipelines."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
TIMED = """
import runpy, sys, time
import airflow.sdk
from airflow.sdk import DAG, Asset, BaseOperator, CronDataIntervalTimetable, ExceptionRetryPolicy, Param
started = time.monotonic()
found = runpy.run_path(sys.argv[1])
print(time.monotonic() - started, sum(isinstance(one, DAG) for one in found.values()))
"""


def main(
    pipelines: Annotated[int, typer.Option(help="declared pipelines")] = 50,
    rounds: Annotated[int, typer.Option(help="fresh processes, of which the median counts")] = 5,
) -> None:
    """Load dags/pipelines.py in fresh processes; Airflow's own import is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        text = (ROOT / "etl/pipelines/flights.py").read_text()
        for number in range(pipelines):
            declared = text.replace('name="flights"', f'name="flights_{number}"')
            Path(folder, f"flights_{number}.py").write_text(declared)
        seconds = [_load(folder, pipelines) for _ in range(rounds)]
    typer.echo(
        f"{pipelines} pipelines as DAGs: {statistics.median(seconds):.2f} s (from {min(seconds):.2f} to {max(seconds):.2f})"
    )


def _load(folder: str, pipelines: int) -> float:
    environment = os.environ | {"SLUICE_PIPELINES": folder, "AIRFLOW_HOME": folder}
    command = [sys.executable, "-c", TIMED, str(ROOT / "dags/pipelines.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, dags = done.stdout.split()[-2:]
    assert int(dags) == 2 * pipelines, done.stderr  # one for runs, one for replays
    return float(seconds)


if __name__ == "__main__":
    typer.run(main)
