"""Releases and discards held rows from the pages: exactly the rows that the person saw, or nothing.

A form carries a signed note of who was shown which rows, for what, and when. It is valid for that user, that action and
those very rows, for ten minutes; and only when the browser says that it comes from a page of this server.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.configuration import conf
from airflow.exceptions import DagNotFound, DagRunAlreadyExists, ParamValidationError
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from itsdangerous import BadSignature, URLSafeTimedSerializer
from sqlalchemy import select
from starlette.requests import Request

from etl.airflow.pages.deciding.choices import AnyChoice, ReleaseRequest, Rows
from etl.airflow.run_form import RunForm
from etl.common.errors import NeedsPerson, TooManyReleases
from etl.pipeline.dag_names import replays_of

COUNTS_FOR = 600  # seconds
_RELEASE = "release__"  # what the ids of Airflow's runs of releases from the pages begin with


class NotOurs(Exception):
    """The form was not drawn by this server for this user and these rows, or too long ago; nothing was changed."""


def signed(user: BaseUser, choice: AnyChoice, digest: str) -> str:
    """Sign the note for a form: who was shown what, for which decision."""
    return _notes().dumps([user.get_id(), *choice.identity, digest, secrets.token_hex(8)])


def read_note(request: Request, note: str, user: BaseUser, choice: AnyChoice) -> tuple[str, str]:
    """Return the digest of what was shown, and a word that no other form has. Raises NotOurs."""
    if not _is_same_origin(request):
        raise NotOurs("The form was sent from another site than these pages")
    try:
        *whom, digest, nonce = _notes().loads(note, max_age=COUNTS_FOR)
    except (BadSignature, ValueError, TypeError) as error:
        raise NotOurs("The form is too old, or does not come from these pages") from error
    if whom != [user.get_id(), *choice.identity]:
        raise NotOurs("The form was drawn for another user, or for something else")
    return digest, nonce


def require_shown(rows: Rows, digest: str, pipeline: str) -> None:
    """Raise NeedsPerson unless these are the very rows that were shown."""
    if not rows.ids or rows.more or rows.digest != digest:
        raise NeedsPerson(
            "The held rows are no longer those that were shown: somebody else has changed them since. Nothing was changed",
            remedy=f"sluice quarantine list {pipeline}",
        )


def run_id_of(nonce: str) -> str:
    return f"{_RELEASE}{nonce}"


def require_release_rate(pipeline: str, most: int) -> None:
    """Require that the pages have asked for fewer than so many releases of a pipeline within an hour.

    Raises TooManyReleases. Each run counts its own beginning again, with those of the command line: what is counted here is
    what may wait in Airflow.
    """
    asked = select(DagRun.created_at).where(
        DagRun.dag_id == replays_of(pipeline),
        DagRun.run_id.startswith(_RELEASE, autoescape=True),
        DagRun.created_at > datetime.now(UTC) - timedelta(hours=1),
    )
    with create_session() as session:
        first = session.scalar(asked.order_by(DagRun.created_at.desc()).offset(most - 1).limit(1))
    if first is not None:
        raise TooManyReleases.since(pipeline, most, first)


def trigger_release(
    pipeline: str,
    numbers: Sequence[int],
    *,
    user: BaseUser,
    why: str,
    nonce: str,
    corrections: str | None = None,
) -> str:
    """Trigger the DAG for the pipeline's replays as this user, to release these rows, and return the run's id.

    The same form sent twice is the same run. Raises NeedsPerson where Airflow refuses.
    """
    dag_id, run_id = replays_of(pipeline), run_id_of(nonce)
    form = RunForm(release=",".join(map(str, numbers)), corrections=corrections, why=why)
    try:
        trigger_dag(
            dag_id,
            run_id=run_id,
            conf=form.filled_in(),
            triggered_by=DagRunTriggeredByType.UI,
            triggering_user_name=user.get_name(),
        )
    except DagRunAlreadyExists:
        return run_id
    except (DagNotFound, ParamValidationError, ValueError) as error:
        raise NeedsPerson(
            f"Airflow refused to start a run of {dag_id}: {error}. Nothing was changed",
            remedy=f"check the DAG {dag_id} in Airflow; a pipeline whose sink is replaced has none",
        ) from error
    return run_id


def release_request_of(dag_id: str, run_id: str) -> ReleaseRequest | None:
    """Return what an Airflow run was asked to release; None if it was asked for no release."""
    with create_session() as session:
        columns = select(DagRun.conf, DagRun.triggering_user_name, DagRun.state, DagModel.is_paused)
        joined = columns.join(DagModel, DagModel.dag_id == DagRun.dag_id)
        run: Any = session.execute(joined.where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)).first()
    form = run.conf if run is not None and isinstance(run.conf, dict) else {}
    if not form.get("release"):
        return None
    return ReleaseRequest(
        rows=str(form["release"]).count(",") + 1,
        who=run.triggering_user_name,
        why=str(form.get("why") or ""),
        state=str(run.state),
        paused=bool(run.is_paused),
    )


def _notes() -> URLSafeTimedSerializer:
    # Airflow's own key, which all processes of the api-server share
    return URLSafeTimedSerializer(conf.get_mandatory_value("api", "secret_key"), salt="sluice: data quality")


def _is_same_origin(request: Request) -> bool:
    """Return True if the request comes from our own pages, by both headers that no page can forge.

    A proxy that changes the host needs [api] base_url.
    """
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    sent = urlsplit(request.headers.get("origin", "")).netloc
    ours = {request.headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc}
    return sent != "" and sent in ours
