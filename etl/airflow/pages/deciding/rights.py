"""Says who may see and decide what: by Airflow's own rights, and by the deciders that a pipeline declares."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import select

from etl.airflow.pages.deciding.choices import Action, Decides
from etl.pipeline.dag_names import RUN_TASK, replays_of


def may_decide(user: BaseUser, pipeline: str) -> frozenset[Decides]:
    """Return what the user may decide: each takes Airflow's right to what does it, and to be one of the deciders, if any.

    A discard, which these pages make, takes the right to trigger the pipeline's DAG; a release, which the DAG for replays
    makes in the user's name, the right to trigger that one; a decision on a stopped batch the right to answer what the
    pipeline's DAG asks.
    """
    named = deciders(pipeline)
    if named is None or (named and user.get_name() not in named):
        return frozenset()
    beside = replays_of(pipeline)
    triggers: dict[Action, str] = {"discard": pipeline, "release": beside, "correct": beside}
    found: set[Decides] = {action for action, dag_id in triggers.items() if may_trigger(user, dag_id)}
    if _has_right(user, pipeline, "PUT", DagAccessEntity.HITL_DETAIL):
        found.add("decide")
    return frozenset(found)


def may_trigger(user: BaseUser, dag_id: str) -> bool:
    return _has_right(user, dag_id, "POST", DagAccessEntity.RUN)


def _has_right(user: BaseUser, dag_id: str, method: Any, entity: DagAccessEntity) -> bool:
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(
        method=method, access_entity=entity, details=details, user=user
    )


def deciders(pipeline: str) -> Collection[str] | None:
    """Return the names of those who alone may decide, as the DAG that Airflow has of the pipeline names them.

    None: Airflow has no such DAG, so nobody knows whom it names.
    """
    dag = SerializedDagModel.get_dag(pipeline)
    if dag is None:
        return None
    return frozenset(getattr(dag.task_dict.get(RUN_TASK), "deciders", None) or ())


def permitted(user: BaseUser) -> Callable[[list[str]], list[str]]:
    """Return a function that keeps the pipelines whose DAG's runs the user may read."""

    def keep(names: list[str]) -> list[str]:
        manager, teams = get_auth_manager(), DagModel.get_dag_id_to_team_name_mapping(names)
        return [
            name
            for name in names
            if manager.is_authorized_dag(
                method="GET",
                access_entity=DagAccessEntity.RUN,
                details=DagDetails(id=name, team_name=teams.get(name)),
                user=user,
            )
        ]

    return keep


def with_dag(pipelines: list[str]) -> Collection[str]:
    """Return those pipelines of which Airflow has a DAG now; of others the declaration is gone, or has a mistake."""
    of_these = select(DagModel.dag_id).where(DagModel.dag_id.in_(pipelines), ~DagModel.is_stale)
    with create_session() as session:
        return frozenset(session.scalars(of_these))
