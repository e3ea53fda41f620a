"""What the pages answer with: a page's HTML, and in place of one what keeps it from being made.

Every answer forbids scripts and other hosts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from fastapi import Request
from fastapi.responses import HTMLResponse
from psycopg2 import errorcodes
from starlette.exceptions import HTTPException

from etl.airflow.pages import pages
from etl.airflow.pages.deciding import decisions
from etl.airflow.pages.render import Frame, NotThere, Page
from etl.common.errors import NeedsPerson, SluiceError, TooManyReleases

log = logging.getLogger("sluice")

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-store",
}
POLICY = (
    "default-src 'none'; script-src 'none'; style-src 'nonce-{nonce}'; img-src 'self' data:; "
    "form-action 'self'; frame-ancestors 'self'; base-uri 'none'"
)
AWAY = "PostgreSQL, in which the ledger is, does not answer"


@contextmanager
def http_errors(request: Request) -> Iterator[None]:
    """Turn what keeps a page from being made into an answer that a person can act on. Raises HTTPException."""
    try:
        yield
    except NotThere as missing:
        raise HTTPException(404, str(missing)) from missing
    except decisions.NotOurs as error:
        remedy = "go back, load the page again, and decide there"
        raise HTTPException(403, f"{error}. Nothing was changed.", {"X-Remedy": remedy}) from error
    except NeedsPerson as error:
        raise HTTPException(409, error.seen, {"X-Remedy": error.remedy}) from error
    except TooManyReleases as error:
        raise HTTPException(429, error.seen, {"X-Remedy": error.remedy}) from error
    except SluiceError as error:
        raise HTTPException(503, error.seen, {"X-Remedy": error.remedy}) from error
    except psycopg2.Error as error:
        if error.pgcode in (errorcodes.UNDEFINED_TABLE, errorcodes.UNDEFINED_COLUMN):
            seen, remedy = "The ledger does not exist yet, or is older than these pages", "sluice status"
        elif error.pgcode == errorcodes.LOCK_NOT_AVAILABLE:
            seen, remedy = "Another transaction holds these rows. Nothing was changed", "again later"
        elif error.pgcode == errorcodes.QUERY_CANCELED:
            seen, remedy = "The ledger did not answer within 10 s", "choose fewer rows, or try again later"
        else:
            log.exception("a page of %s could not be read", request.url.path)
            seen, remedy = AWAY, "sluice doctor"
        raise HTTPException(503, seen, {"X-Remedy": remedy}) from error


TITLES = {
    401: "Sign in to Airflow first",
    403: "You may not see this pipeline",
    404: "There is no such page",
    409: "Nothing was changed",
    429: "Nothing was changed",
    503: "This can't be shown now",
}


async def refused(request: Request, error: Any) -> HTMLResponse:  # noqa: ARG001 - FastAPI's signature
    headers = dict(error.headers or {})
    remedy = headers.pop("X-Remedy", "")
    if error.status_code == 404 and error.detail == "Not Found":
        text = "The address is wrong, or the page has gone."
    elif error.status_code in (401, 403) and not remedy:
        text = (
            "Airflow decides who may: it takes the right to read the runs of the DAG of the pipeline's name, to trigger it"
            " for a discard, to trigger the DAG for its replays for a release, and to answer what it asks for a decision"
            " on a stopped batch. Where the pipeline declares its deciders, they alone may decide."
        )
    else:
        text = str(error.detail)
    title = TITLES.get(error.status_code, "This can't be shown")
    answer = html(pages.problem(Frame(), title=title, text=text, remedy=remedy), error.status_code)
    answer.headers.update(headers)
    return answer


async def misread(request: Request, error: Any) -> HTMLResponse:
    fields = ", ".join(str(one["loc"][-1]) for one in error.errors())
    title = "The address is not one of these pages"
    if request.method == "POST":
        title = "The form was not filled in correctly; nothing was changed"
    page = pages.problem(Frame(), title=title, text=f"wrong: {fields}")
    return html(page, 422)


async def failed(request: Request, error: Exception) -> HTMLResponse:
    log.error("the page %s could not be made", request.url.path, exc_info=error)
    page = pages.problem(
        Frame(), title="This page has a fault", text="What went wrong is in the log of Airflow's api-server."
    )
    return html(page, 500)


def html(page: Page, status: int = 200) -> HTMLResponse:
    # a lone surrogate, which JSON may hold, has no UTF-8
    body = page.html.encode("utf-8", "replace")
    policy = {"Content-Security-Policy": POLICY.format(nonce=page.nonce)}
    return HTMLResponse(body, status, headers=HEADERS | policy)
