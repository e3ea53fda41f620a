"""Decides on a stopped batch from the pages: on the very stop that the person saw, and then lets the run go on."""

from __future__ import annotations

import datetime as dt
import json
import logging

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
from airflow.exceptions import DagNotFound, DagRunAlreadyExists
from airflow.models.dag import DagModel
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select
from starlette.exceptions import HTTPException

from etl.airflow.pages.deciding.choices import StopChoice
from etl.airflow.pages.deciding.rights import may_trigger
from etl.airflow.questions.question import RETRY, SeenStop
from etl.ledger.decisions import decide_on_stop
from etl.pipeline.dag_names import RUN_TASK

log = logging.getLogger("sluice")


def digest_of(stop: SeenStop) -> str:
    """Write the stop that a person was shown into the note of the form."""
    return json.dumps([stop.stream, stop.batch, stop.stopped_at])


def decide(dsn: str, choice: StopChoice, digest: str, *, user: BaseUser, why: str) -> None:
    """Record the decision on the stop of the digest. Raises NeedsPerson where that is no longer as it was shown."""
    stream, batch, stopped_at = json.loads(digest)
    decide_on_stop(
        dsn,
        choice.pipeline,
        batch=batch,
        stream=stream,
        action=choice.action,
        who=user.get_name(),
        why=why,
        seen=dt.datetime.fromisoformat(stopped_at),
    )


def waiting_run(pipeline: str) -> str | None:
    """Return the run of the pipeline's DAG that waits for an answer; None where none does."""
    asked = (
        select(TaskInstance.run_id)
        .join(HITLDetail, HITLDetail.ti_id == TaskInstance.id)
        .where(
            TaskInstance.dag_id == pipeline,
            TaskInstance.task_id == RUN_TASK,
            TaskInstance.state == TaskInstanceState.AWAITING_INPUT,
            HITLDetail.responded_at.is_(None),
        )
    )
    with create_session() as session:
        found: str | None = session.scalars(asked).first()
    return found


def go_on(pipeline: str, *, user: BaseUser, why: str, nonce: str) -> None:
    """Have a run act on what was decided: the one that waits, else a new one, where the user may trigger it.

    A DAG that is paused starts none; and where no run can be had, the next one acts on it.
    """
    if (run_id := waiting_run(pipeline)) is not None:
        answer = UpdateHITLDetailPayload(chosen_options=[RETRY.title], params_input={"why": why})
        try:
            with create_session() as session:
                update_hitl_detail(pipeline, run_id, RUN_TASK, answer, user, session)
        except HTTPException as refused:  # somebody answers just now: the run looks at what is decided, too
            log.info("the run %s of %s was not woken: %s", run_id, pipeline, refused.detail)
        return
    with create_session() as session:
        paused = session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == pipeline))
    if paused or not may_trigger(user, pipeline):
        return
    try:
        trigger_dag(
            pipeline,
            run_id=f"decided__{nonce}",
            triggered_by=DagRunTriggeredByType.UI,
            triggering_user_name=user.get_name(),
        )
    except (DagRunAlreadyExists, DagNotFound, ValueError) as refused:
        log.info("no run of %s was started after a decision: %s", pipeline, refused)
