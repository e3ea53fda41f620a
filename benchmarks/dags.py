"""`python -m benchmarks.dags`: how long a folder of many pipelines takes Airflow's DAG processor, and a task's start."""

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
        every = [_load(folder, 2 * pipelines) for _ in range(rounds)]  # one for runs, one for replays
        one = [_load(folder, 1, dag_id=f"flights_{pipelines - 1}") for _ in range(rounds)]
    typer.echo(f"{pipelines} pipelines as DAGs: {_told(every)}")
    typer.echo(f"of these the one whose task starts: {_told(one)}")


def _told(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s (from {min(seconds):.2f} to {max(seconds):.2f})"


def _load(folder: str, made: int, dag_id: str | None = None) -> float:
    environment = os.environ | {"SLUICE_PIPELINES": folder, "AIRFLOW_HOME": folder}
    if dag_id is not None:
        environment["_AIRFLOW_PARSING_CONTEXT_DAG_ID"] = dag_id  # as Airflow's task runner sets it
    command = [sys.executable, "-c", TIMED, str(ROOT / "dags/pipelines.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, dags = done.stdout.split()[-2:]
    assert int(dags) == made, done.stderr
    return float(seconds)


if __name__ == "__main__":
    typer.run(main)
