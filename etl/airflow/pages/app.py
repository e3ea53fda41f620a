"""The pages as a FastAPI application, mounted by the Airflow plugin.

Nobody sees anything without Airflow's own sign-in, and a pipeline's pages require the right to read the runs of the DAG
of that name: each route below a pipeline's name asks for it. Who may decide is in etl/airflow/pages/deciding/rights.py.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from fastapi import APIRouter, Depends, FastAPI, Form, Path, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from etl.airflow.connections import settings_here
from etl.airflow.pages import columns, held_rows, pages
from etl.airflow.pages.answers import HEADERS, POLICY, failed, html, http_errors, misread, refused
from etl.airflow.pages.deciding import alerts, decisions, stops
from etl.airflow.pages.deciding.choices import Action, AlertChoice, Choice, StopChoice, rows_of
from etl.airflow.pages.deciding.rights import may_decide, may_trigger, permitted, with_dag
from etl.airflow.pages.deciding.typed import corrections_of
from etl.airflow.pages.held_rows import Wanted
from etl.airflow.pages.records import LAST, reading
from etl.airflow.pages.render import Frame, Page, no_dag
from etl.airflow.run_form import LONGEST_CORRECTIONS
from etl.common.database import Cursor
from etl.common.errors import NeedsPerson
from etl.ledger.decisions import Action as Decision
from etl.ledger.quarantine import discard
from etl.ledger.telemetry import metrics as ledger_metrics
from etl.pipeline.dag_names import pipeline_of, replays_of
from etl.services import find_postgres

log = logging.getLogger("sluice")

LONGEST_FORM = 1_000_000  # bytes: corrections in any script, and what is around them
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

Number = Annotated[int, Path(ge=1, le=LAST)]
Before = Annotated[int, Query(ge=1, le=LAST)]
Text = Annotated[str, Query(max_length=2_000, pattern="^[^\0]*$")]  # PostgreSQL's text holds no NUL
Name = Annotated[str, Path(max_length=250, pattern="^[^\0]*$")]
Why = Annotated[str, Form(max_length=2_000, pattern="^[^\0]*[^\\s\0][^\0]*$")]
Note = Annotated[str, Form(max_length=4_000)]
Typed = Annotated[str, Form(max_length=LONGEST_CORRECTIONS)]
User = Annotated[BaseUser, Depends(get_user)]
Link = Annotated[str, Query(pattern="^[0-9]{1,18}-[0-9]{1,18}$")]

READS = Depends(requires_access_dag("GET", DagAccessEntity.RUN))
router = APIRouter(dependencies=[READS])


def _require_right(user: User, dag_id: Name, action: Action) -> None:
    if action not in may_decide(user, dag_id):
        raise HTTPException(403, "Forbidden")
    if action != "discard" and not with_dag([dag_id]):
        raise HTTPException(409, f"{no_dag(dag_id)}. Nothing was changed")


def _require_right_to_stops(user: User, dag_id: Name) -> None:
    if "decide" not in may_decide(user, dag_id):
        raise HTTPException(403, "Forbidden")
    if not with_dag([dag_id]):
        raise HTTPException(409, f"{no_dag(dag_id)}. Nothing was changed")


def _require_right_to_trigger(user: User, dag_id: Name) -> None:
    if not may_trigger(user, dag_id):
        raise HTTPException(403, "Forbidden")


decides = APIRouter(dependencies=[READS, Depends(_require_right)])
decides_stops = APIRouter(dependencies=[READS, Depends(_require_right_to_stops)])

takes_up = APIRouter(dependencies=[READS, Depends(_require_right_to_trigger)])


def build() -> FastAPI:
    app = FastAPI(
        title="Sluice: data quality",
        dependencies=[Depends(get_user)],
        default_response_class=HTMLResponse,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.middleware("http")(_bounded)
    app.add_api_route("/", overview, methods=["GET"])
    app.add_api_route("/metrics", metrics, methods=["GET"])
    app.include_router(router)
    app.include_router(decides)
    app.include_router(decides_stops)
    app.include_router(takes_up)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, misread)
    app.add_exception_handler(Exception, failed)
    return app


async def _bounded(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    """Refuse what sends more than any form of these pages does, before it is read."""
    length = request.headers.get("content-length", "")
    if request.method != "POST" or (length.isdecimal() and int(length) <= LONGEST_FORM):
        return await go_on(request)
    text = f"A form has at most {LONGEST_FORM:,} bytes, and says how many. Nothing was changed."
    return html(pages.problem(Frame(), title="That is too much", text=text), 413)


def overview(
    request: Request,
    user: User,
    start: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    retired: bool = False,
) -> HTMLResponse:
    return _answer(
        request,
        lambda cursor, frame: pages.overview(
            cursor, permitted(user), frame, declared=with_dag, start=start, retired=retired
        ),
    )


def metrics(request: Request, user: User) -> Response:
    """Answer with Prometheus' text, of the pipelines whose runs the user may read."""
    with http_errors(request), reading(find_postgres(settings_here())) as cursor:
        text = ledger_metrics.text(cursor, permitted(user))
    policy = {"Content-Security-Policy": POLICY.format(nonce="none")}
    return Response(text, media_type=PROMETHEUS, headers=HEADERS | policy)


@router.get("/{dag_id}/")
def pipeline(request: Request, dag_id: Name, before: Before = LAST) -> Response:
    if (name := pipeline_of(dag_id)) != dag_id:
        return _leads_to(f"../{quote(name, safe='')}/")
    return _answer(request, lambda cursor, frame: pages.pipeline(cursor, dag_id, frame, before=before))


@router.get("/{dag_id}")
def pipeline_without_slash(request: Request, dag_id: Name) -> RedirectResponse:
    """Lead to the pipeline's page, whose links are relative to its folder."""
    asked = f"?{request.url.query}" if request.url.query else ""
    return _leads_to(f"{quote(dag_id, safe='')}/{asked}")


@router.get("/{dag_id}/run")
def dag_run(
    request: Request,
    dag_id: Name,
    run_id: Text,
    task_id: Text | None = None,
    dag: Text | None = None,
    before: Before = LAST,
) -> Response:
    """Show the page of a DAG run; `dag` is the run's DAG where that is not the one of the pipeline's name."""
    if (name := pipeline_of(dag_id)) != dag_id:
        return _leads_to(f"../{quote(name, safe='')}/run", dag=dag_id, run_id=run_id, task_id=task_id)
    dag = dag or dag_id
    # Airflow's own note of a run, by the right to this pipeline: of no other DAG
    release_request = (
        decisions.release_request_of(dag, run_id) if dag in (dag_id, replays_of(dag_id)) else None
    )
    return _answer(
        request,
        lambda cursor, frame: pages.dag_run(
            cursor,
            dag_id,
            frame,
            dag=dag,
            run_id=run_id,
            task_id=task_id,
            before=before,
            release_request=release_request,
        ),
    )


@router.get("/{dag_id}/rule")
def rule(request: Request, dag_id: Name, name: Text, before: Before = LAST) -> HTMLResponse:
    return _answer(
        request, lambda cursor, frame: pages.rule(cursor, dag_id, frame, known_by=name, before=before)
    )


@router.get("/{dag_id}/column")
def column(request: Request, dag_id: Name, name: Text, before: Before = LAST) -> HTMLResponse:
    return _answer(
        request, lambda cursor, frame: columns.column(cursor, dag_id, frame, column=name, before=before)
    )


@router.get("/{dag_id}/batch/{delivery_id}")
def batch(request: Request, user: User, dag_id: Name, delivery_id: Number) -> HTMLResponse:
    return _answer(
        request,
        lambda cursor, frame: pages.batch(cursor, dag_id, frame, delivery=delivery_id),
        up="../",
        decides=may_decide(user, dag_id),
    )


@router.get("/{dag_id}/stopped")
def stopped(request: Request, user: User, dag_id: Name) -> HTMLResponse:
    waiting = stops.waiting_run(dag_id)
    return _answer(
        request,
        lambda cursor, frame: pages.stopped(cursor, dag_id, frame, waiting=waiting),
        decides=may_decide(user, dag_id),
    )


@router.get("/{dag_id}/quarantine")
def quarantine(
    request: Request,
    dag_id: Name,
    rule: Text = "",
    batch: Annotated[str, Query(pattern="^[0-9]{0,18}$")] = "",
    status: Literal["held", "released", "discarded", "superseded", "all"] = "held",
    since: dt.date | Literal[""] = "",
    until: dt.date | Literal[""] = "",
    before: Link | None = None,
) -> HTMLResponse:
    commit, _, row = (before or f"{LAST}-{LAST}").partition("-")
    wanted = Wanted(
        rule=rule or None,
        batch=int(batch) if batch else None,
        status=None if status == "all" else status,
        since=since or None,
        until=until or None,
        before=(int(commit), int(row)),
    )
    return _answer(request, lambda cursor, frame: held_rows.quarantine(cursor, dag_id, frame, wanted=wanted))


@router.get("/{dag_id}/quarantine/{row_id}")
def held_row(request: Request, user: User, dag_id: Name, row_id: Number) -> HTMLResponse:
    return _answer(
        request,
        lambda cursor, frame: held_rows.held_row(cursor, dag_id, frame, number=row_id),
        up="../",
        decides=may_decide(user, dag_id),
    )


def _row(dag_id: Name, row_id: Number, action: Action) -> Choice:
    return Choice(pipeline=dag_id, action=action, row=row_id)


def _all_of_batch(dag_id: Name, delivery_id: Number, action: Action) -> Choice:
    return Choice(pipeline=dag_id, action=action, delivery=delivery_id)


OfRow = Annotated[Choice, Depends(_row)]
OfBatch = Annotated[Choice, Depends(_all_of_batch)]


@decides.get("/{dag_id}/quarantine/{row_id}/{action}")
def ask_for_row(request: Request, user: User, choice: OfRow) -> HTMLResponse:
    return _ask(request, user, choice)


@decides.get("/{dag_id}/batch/{delivery_id}/{action}")
def ask_for_batch(request: Request, user: User, choice: OfBatch) -> HTMLResponse:
    return _ask(request, user, choice)


@decides.post("/{dag_id}/quarantine/{row_id}/{action}")
def decide_row(
    request: Request, user: User, choice: OfRow, why: Why, note: Note = "", corrections: Typed = ""
) -> RedirectResponse:
    return _decide(request, user, choice, why, note, corrections)


@decides.post("/{dag_id}/batch/{delivery_id}/{action}")
def decide_batch(
    request: Request,
    user: User,
    choice: OfBatch,
    why: Why,
    note: Note = "",
    corrections: UploadFile | None = None,
) -> RedirectResponse:
    with http_errors(request):
        given = _text_of(corrections) if corrections else ""
    return _decide(request, user, choice, why, note, given)


@decides_stops.get("/{dag_id}/stopped/{decision}")
def ask_for_stop(request: Request, user: User, dag_id: Name, decision: Decision) -> HTMLResponse:
    choice = StopChoice(pipeline=dag_id, action=decision)
    return _answer(
        request,
        lambda cursor, frame: pages.stop_decision(
            cursor,
            frame,
            choice=choice,
            sign=lambda stop: decisions.signed(user, choice, stops.digest_of(stop)),
        ),
        up="../",
    )


@decides_stops.post("/{dag_id}/stopped/{decision}")
def decide_on_stopped(
    request: Request, user: User, dag_id: Name, decision: Decision, why: Why, note: Note = ""
) -> RedirectResponse:
    """Record the decision on the very stop that was shown, let the run go on, and lead to the page that says so."""
    choice = StopChoice(pipeline=dag_id, action=decision)
    with http_errors(request):
        digest, nonce = decisions.read_note(request, note, user, choice)
        stops.decide(find_postgres(settings_here()), choice, digest, user=user, why=why)
        stops.go_on(dag_id, user=user, why=why, nonce=nonce)
    return _leads_to("../stopped")


@router.get("/{dag_id}/alerts")
def open_alerts(request: Request, user: User, dag_id: Name) -> HTMLResponse:
    return _answer(
        request,
        lambda cursor, frame: alerts.listed(cursor, dag_id, frame),
        decides=frozenset({"acknowledge"} if may_trigger(user, dag_id) else ()),
    )


@takes_up.get("/{dag_id}/alerts/{number}/acknowledge")
def ask_for_alert(request: Request, user: User, dag_id: Name, number: Number) -> HTMLResponse:
    choice = AlertChoice(pipeline=dag_id, alert=number)
    return _answer(
        request,
        lambda cursor, frame: alerts.asked(cursor, frame, choice, note=decisions.signed(user, choice, "")),
        up="../../",
    )


@takes_up.post("/{dag_id}/alerts/{number}/acknowledge")
def acknowledge(
    request: Request, user: User, dag_id: Name, number: Number, note: Note = ""
) -> RedirectResponse:
    """Note that the user has taken the alert up, and lead to the page that says so."""
    choice = AlertChoice(pipeline=dag_id, alert=number)
    with http_errors(request):
        decisions.read_note(request, note, user, choice)
        alerts.take_up(find_postgres(settings_here()), choice, who=user.get_name())
    return _leads_to("../../alerts")


def _ask(request: Request, user: BaseUser, choice: Choice) -> HTMLResponse:
    return _answer(
        request,
        lambda cursor, frame: held_rows.decision(
            cursor, frame, choice=choice, sign=lambda rows: decisions.signed(user, choice, rows.digest)
        ),
        up="../../",
    )


def _text_of(upload: UploadFile) -> str:
    """Read an uploaded text, as far as a decision may be long. Raises NeedsPerson where it is no UTF-8."""
    try:
        return upload.file.read(LONGEST_CORRECTIONS * 4).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NeedsPerson(
            f"The corrections are no UTF-8, from byte {error.start} on. Nothing was changed",
            remedy="save the file as UTF-8, and upload it once more",
        ) from error


def _decide(
    request: Request, user: BaseUser, choice: Choice, why: str, note: str, corrections: str
) -> RedirectResponse:
    """Decide on exactly the rows that were shown, and lead to the page that says what was done."""
    with http_errors(request):
        digest, nonce = decisions.read_note(request, note, user, choice)
        settings = settings_here()
        dsn = find_postgres(settings)
        run_sent_before = decisions.run_id_of(nonce)
        if choice.action != "discard" and decisions.release_request_of(
            replays_of(choice.pipeline), run_sent_before
        ):
            return _leads_to_run(choice, run_sent_before)  # the form was sent twice
        with reading(dsn) as cursor:
            rows = rows_of(cursor, choice)
        decisions.require_shown(rows, digest, choice.pipeline)
        if choice.action == "discard":
            discard(dsn, choice.pipeline, rows.ids, who=user.get_name(), why=why)
            return _leads_to(f"../{choice.row or choice.delivery}")
        numbers, typed = rows.ids, None
        if choice.action == "correct":
            numbers, typed = corrections_of(choice, rows, corrections)
        decisions.require_release_rate(choice.pipeline, settings.releases_per_hour)
        run_id = decisions.trigger_release(
            choice.pipeline, numbers, user=user, why=why, nonce=nonce, corrections=typed
        )
        return _leads_to_run(choice, run_id)


def _leads_to_run(choice: Choice, run_id: str) -> RedirectResponse:
    return _leads_to("../../run", dag=replays_of(choice.pipeline), run_id=run_id)


def _leads_to(address: str, **query: str | None) -> RedirectResponse:
    parameters = urlencode({name: value for name, value in query.items() if value is not None})
    policy = {"Content-Security-Policy": POLICY.format(nonce="none")}  # it has no style element
    place = f"{address}?{parameters}" if parameters else address
    return RedirectResponse(place, 303, headers=HEADERS | policy)


def _answer(
    request: Request,
    make: Callable[[Cursor, Frame], Page],
    *,
    up: str = "",
    decides: frozenset[str] = frozenset(),
) -> HTMLResponse:
    # the application's own mount is the last part of the path; what is before it is Airflow's
    airflow = str(request.scope.get("root_path", "")).rpartition("/")[0]
    with http_errors(request), reading(find_postgres(settings_here())) as cursor:
        name = request.path_params.get("dag_id")
        declared = name is None or bool(with_dag([name]))
        frame = Frame(
            airflow=airflow,
            up=up,
            decides=decides if declared else decides & {"discard"},
            declared=declared,
        )
        return html(make(cursor, frame))
