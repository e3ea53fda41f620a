"""Identifies one try of an Airflow task; the operator passes it to the command. Light to import."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from etl.airflow.run_form import RunForm
from etl.common.errors import SetupError


@dataclass(frozen=True, kw_only=True)
class TaskTry(RunForm):
    """One try of one task of one DAG run, in Airflow's own terms, with what the form of the run says."""

    dag_id: str
    dag_run_id: str
    task_id: str
    try_number: int
    run_type: str  # scheduled, manual, backfill or asset_triggered
    clear_number: int  # of the DAG run: a clear that leaves the run as it is does not count here
    tries_before_clear: int = 0  # of the task, before it was last cleared in whatever way
    interval_start: str | None = None  # of the run's own data interval, ISO 8601
    interval_end: str | None = None  # exclusive
    # asked of the DAG for replays and releases: nothing that has landed since is delivered
    beside: bool = False
    who: str | None = None  # the user who triggered it
    # the commit up to which the newest asset event tells; None: no such event is left
    told_to: int | None = None
    told_delivery: int | None = None  # that this commit made; None: the event does not say
    told_run: str | None = None  # which made it

    @classmethod
    def parse(cls, text: str) -> TaskTry:
        """Read the try from JSON, as the operator passes it. Raises SetupError."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise SetupError(
                f"standard input does not hold one try of an Airflow task, as --airflow says: {error}",
                remedy="leave the option to Sluice's operator",
            ) from error

    def json(self) -> str:
        return json.dumps(dataclasses.asdict(self))
