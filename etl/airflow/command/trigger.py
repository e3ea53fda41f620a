"""`sluice trigger`: runs a pipeline once through the local Airflow and follows the run to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from etl.airflow.api import Api, Refused
from etl.common.errors import ServiceAway, SluiceError
from etl.runs.summary import Summary

TASK = "run"
KNOWN_WITHIN = 60  # seconds; the DAG processor looks every few
LONGEST = 24 * 3600  # seconds
BEFORE_THE_SCHEDULE = timedelta(days=400)  # longer than any schedule's interval


class RunFailed(SluiceError):
    """The run ended without success in Airflow; its exit code is the command's own."""

    def __init__(self, seen: str, *, remedy: str, exit_code: int) -> None:
        super().__init__(seen, remedy=remedy)
        self.exit_code = exit_code


def trigger(api: Api, name: str, say: Callable[[str], None]) -> Summary:
    """Start the DAG `name`, pass on what its task says of each batch, and return the run's summary.

    A DAG that was paused is paused again afterwards: its schedule stays as somebody set it.
    """
    _await_dag(api, name)
    paused = api.is_paused(name)
    # Unpaused, the DAG begins with its schedule's last interval, if nothing that waits is older.
    run = api.trigger(name, run_after=datetime.now(UTC) - BEFORE_THE_SCHEDULE if paused else None)
    try:
        if paused:
            api.unpause(name)
        _follow(api, name, run, say)
    finally:
        if paused:
            api.pause(name)
    return _summary(api, name, run)


def _await_dag(api: Api, name: str) -> None:
    deadline = time.monotonic() + KNOWN_WITHIN
    while not api.dag_is_known(name):
        if time.monotonic() > deadline:
            wrong = "".join(f"\n  - {file}: {text}" for file, text in api.import_errors().items())
            raise ServiceAway(
                f"Airflow has no DAG {name!r} after {KNOWN_WITHIN} s{wrong}",
                remedy="check that the pipeline is declared (`sluice doctor`), then run the same command again",
            )
        time.sleep(0.5)


def _follow(api: Api, name: str, run: str, say: Callable[[str], None]) -> None:
    said: dict[int, int] = {}  # lines of each try that were passed on
    for state in api.follow(name, run, within=LONGEST, ticks=True):
        if state.task != TASK or not state.tries:
            continue
        lines = _lines(api, name, run, state.tries)
        for line in lines[said.get(state.tries, 0) :]:
            say(line)
        said[state.tries] = len(lines)


def _lines(api: Api, name: str, run: str, attempt: int) -> list[str]:
    """Return what the command said in one try; nothing while Airflow has no log of it yet."""
    try:
        lines = api.log(name, run, TASK, attempt)
    except Refused:
        return []
    return [line for line in lines if line.startswith((f"{name} batch", "sluice:", "  evidence:", "  next:"))]


def _summary(api: Api, name: str, run: str) -> Summary:
    try:
        content = api.xcom(name, run, TASK, "summary")
    except Refused:
        content = {}
    exit_code = content.get("exit_code", 70)
    if api.state(name, run) != "success":
        raise RunFailed(
            f"The run {run} of {name} failed; its log is above and in Airflow",
            remedy=f"what the log says; then `sluice trigger {name}`",
            exit_code=exit_code,
        )
    summary = Summary.from_json(content)
    if summary is None:
        raise RunFailed(
            f"The run {run} of {name} was marked a success in Airflow before it had ended",
            remedy=f"`sluice status {name}` shows what was delivered; then `sluice trigger {name}`",
            exit_code=exit_code,
        )
    return summary
