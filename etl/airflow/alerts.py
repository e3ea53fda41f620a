"""Alerts through Airflow's own notifiers: a webhook, and SMTP by Airflow's connection `smtp_default`.

The settings, read with the DAG, say which of the two exist and whom a mail goes to. The webhook's address, which often
is a secret, is read only when it is called: it is in no DAG, not in Airflow's database and on no page.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from airflow.sdk import BaseNotifier
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_exponential

from etl.airflow.connections import webhook
from etl.airflow.deadlines import FirstQueued
from etl.airflow.retries import Answered, TryLater
from etl.common.settings import load_settings
from etl.pipeline import Pipeline

if TYPE_CHECKING:
    from airflow.sdk import Context

ANSWERS_WITHIN = 10  # seconds
TRIES = 4  # of a webhook, with pauses of 1, 2 and 4 s

_WHY = "{{ exception | default('its worker was lost') }}"  # then the DAG processor calls back, without an exception
FAILED = "{{ dag.dag_id }} failed: " + _WHY
RESTARTED = "{{ dag.dag_id }} died and will be started again: " + _WHY
TASK_FAILED = "{{ task.task_id }} failed: " + _WHY
QUARANTINE = "{pipeline} holds {share:.2%} of a run's records in quarantine, more than {limit:.2%}"
DROPPED = "{pipeline}: of what a run read {left_out}"
DRIFTED = "{pipeline}: for the first time since the delivery before, {drift}"
LAGGING = "{pipeline}: {late}; `sluice consumers {pipeline}` lists all of them"
QUESTION = "{subject} Until somebody answers, the run waits: {address}"
WAITING = "{{ task.pipeline }} still waits, and goes on to for hours: {{ exception }}"
DEADLINE = "{pipeline} has not ended within {limit} of being queued"


def _may_pass(error: BaseException) -> bool:
    """Tell whether a webhook may take at another try what it has not taken."""
    if isinstance(error, HTTPError):
        return error.code >= HTTPStatus.INTERNAL_SERVER_ERROR or error.code == HTTPStatus.TOO_MANY_REQUESTS
    return isinstance(error, OSError)


class WebhookNotifier(BaseNotifier):
    """POSTs {"kind", "pipeline", "text"} as JSON to `alert_webhook`; raises OSError when it is not taken.

    A place that can't be reached, or that says to come again, is tried TRIES times: it may have taken one more than once.
    """

    template_fields = ("text",)

    def __init__(self, *, kind: str, pipeline: str, text: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind  # failed, question, waiting, quarantine, dropped, drift, consumer or deadline
        self.pipeline = pipeline
        self.text = text

    def notify(self, context: Context) -> None:  # noqa: ARG002 - Airflow's signature
        address = webhook()
        if address is None:
            return
        body = json.dumps({"kind": self.kind, "pipeline": self.pipeline, "text": self.text}).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "sluice"}
        request = Request(address, data=body, headers=headers, method="POST")  # noqa: S310
        _post(request)

    async def async_notify(self, context: Context) -> None:
        await asyncio.to_thread(self.notify, context)


@retry(
    retry=retry_if_exception(_may_pass),
    stop=stop_after_attempt(TRIES),
    wait=wait_exponential(multiplier=1),
    reraise=True,
)
def _post(request: Request) -> None:
    with urlopen(request, timeout=ANSWERS_WITHIN) as answer:  # noqa: S310 - settings and Connections allow http alone
        answer.read()


def notifiers(kind: str, pipeline: str, text: str) -> list[BaseNotifier]:
    """Make a notifier for each place that the settings name; none where they name none."""
    settings = load_settings()
    configured: list[BaseNotifier] = []
    if settings.alert_webhook is not None or "webhook" in settings.connections:
        configured.append(WebhookNotifier(kind=kind, pipeline=pipeline, text=text))
    if settings.alert_email is not None:
        from airflow.providers.smtp.notifications.smtp import SmtpNotifier

        configured.append(
            SmtpNotifier(
                to=settings.alert_email,
                from_email=settings.alert_email,
                subject=f"Sluice: {pipeline} ({kind})",
                html_content=f"<p>{_escaped(text)}</p>",
            )
        )
    return configured


def restarts(pipeline: str) -> list[Callable[[Context], None]]:
    """Make what tells of the restarts of a run that stays up, but not of each that an outage ends; none without alerts."""

    def tell(context: Context) -> None:
        if not isinstance(context.get("exception"), TryLater | Answered):
            for notifier in notifiers("failed", pipeline, RESTARTED):
                notifier(context)

    return [tell] if notifiers("failed", pipeline, RESTARTED) else []


def _escaped(text: str) -> str:
    """Let Jinja escape each value in the template.

    The mail is HTML, and what an error says may hold a vendor's bytes.
    """
    return text.replace(" }}", " | e }}")


def deadline(pipeline: Pipeline) -> list[DeadlineAlert]:
    """Make the alerts that tell when a run has not ended in time, one for each notifier; the run goes on."""
    if pipeline.deadline is None:
        return []
    text = DEADLINE.format(pipeline=pipeline.name, limit=pipeline.deadline)
    alerts = []
    for notifier in notifiers("deadline", pipeline.name, text):
        kind = type(notifier)
        kwargs = {name: getattr(notifier, name) for name in _WORDS[kind.__name__]}
        alerts.append(
            DeadlineAlert(
                reference=FirstQueued(),
                interval=pipeline.deadline,
                callback=AsyncCallback(kind, kwargs=kwargs),
            )
        )
    return alerts


# What each notifier is made of, for a callback names its class and its arguments.
_WORDS = {
    "WebhookNotifier": ("kind", "pipeline", "text"),
    "SmtpNotifier": ("to", "from_email", "subject", "html_content"),
}
