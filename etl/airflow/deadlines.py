"""The moment from which a run's deadline counts."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from airflow.sdk.definitions.deadline import BaseDeadlineReference

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class FirstQueued(BaseDeadlineReference):
    """The moment when the run was queued for the first time; *Clear* does not put its deadline off.

    Airflow's own DAGRUN_QUEUED_AT can't be had: with it *Clear* of a run whose deadline is still to come is
    an Internal Server Error (Airflow 3.3, apache/airflow#70368).
    """

    required_kwargs: ClassVar[set[str]] = {"dag_id", "run_id"}

    def _evaluate_with(self, *, session: Session, dag_id: str, run_id: str) -> datetime | None:
        from airflow.models import DagRun
        from sqlalchemy import select

        return session.scalar(
            select(DagRun.queued_at).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        )
