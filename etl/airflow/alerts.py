"""Alerts of what Airflow's tasks, deadlines and looks find: told by the ledger's outbox, from Airflow's own processes.

The settings, read with the DAG, say whether there is anybody to tell. Addresses and keys, which often are secrets, are read
only when a message is sent: they are in no DAG, not in Airflow's database and on no page.
"""

from __future__ import annotations

import asyncio
import html
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg2
from airflow.sdk import BaseNotifier
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert
from airflow.sdk.exceptions import AirflowException

from etl.airflow.connections import addresses_here, settings_here
from etl.airflow.deadlines import FirstQueued
from etl.airflow.links import PAGES
from etl.airflow.retries import Answered, TryLater
from etl.alerts import channels as ways
from etl.alerts.channels import Channel
from etl.alerts.destinations import channels, named, recipients
from etl.alerts.notice import Notice
from etl.alerts.outbox import Outbox, SendResult, send_unrecorded
from etl.common.errors import SluiceError
from etl.common.settings import Settings, load_settings
from etl.ledger.telemetry.alerts import Trouble
from etl.pipeline import Pipeline
from etl.pipeline.loader import load_files
from etl.services import find_postgres

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger("sluice")

_WHY = "{{ exception | default('its worker was lost') }}"  # then the DAG processor calls back, without an exception
FAILED = "{{ dag.dag_id }} failed: " + _WHY
RESTARTED = "{{ dag.dag_id }} died and will be started again: " + _WHY
TASK_FAILED = "{{ task.task_id }} failed: " + _WHY
QUESTION = "{subject} Until somebody answers, the run waits: {address}"
WAITING = "{pipeline} still waits, and goes on to for hours: {error}"
DEADLINE = "{pipeline} has not ended within {limit} of being queued"

# What a failure may be about, beside a task of the maintenance's DAG.
OF_RESTART, OF_REPLAYS = "restart", "replays"
LEDGER_AWAY = (OSError, SluiceError, psycopg2.Error)  # what keeps an alert from the ledger
SEND_WITHIN = 20.0  # seconds, in which a task begins messages; the DAG `sluice_alerts` sends the others


class AlertNotifier(BaseNotifier):
    """Tells of a trouble, by whatever destinations there are; for Airflow's callbacks and deadlines."""

    template_fields = ("text",)

    def __init__(self, *, kind: str, pipeline: str, text: str, about: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.pipeline = pipeline
        self.text = text
        self.about = about

    def notify(self, context: Context) -> None:  # noqa: ARG002 - Airflow's signature
        tell(
            self.pipeline, [Trouble(pipeline=self.pipeline, kind=self.kind, text=self.text, about=self.about)]
        )

    async def async_notify(self, context: Context) -> None:
        await asyncio.to_thread(self.notify, context)


def notifiers(kind: str, pipeline: str, text: str, about: str = "") -> list[BaseNotifier]:
    """Make what tells of a trouble; none where the settings name nobody to tell."""
    if not named(load_settings()):
        return []
    return [AlertNotifier(kind=kind, pipeline=pipeline, text=text, about=about)]


def restarts(pipeline: str) -> list[Callable[[Context], None]]:
    """Make what tells of the restarts of a run that stays up, but not of each that an outage ends; none without alerts."""

    def told(context: Context) -> None:
        if not isinstance(context.get("exception"), TryLater | Answered):
            for notifier in notifiers("failed", pipeline, RESTARTED, OF_RESTART):
                notifier(context)

    return [told] if named(load_settings()) else []


def deadline(pipeline: Pipeline) -> list[DeadlineAlert]:
    """Make the alert that tells when a run has not ended in time, if there is anybody to tell; the run goes on."""
    if pipeline.deadline is None or not named(load_settings()):
        return []
    text = DEADLINE.format(pipeline=pipeline.name, limit=pipeline.deadline)
    kwargs = {"kind": "deadline", "pipeline": pipeline.name, "text": text}
    callback = AsyncCallback(AlertNotifier, kwargs=kwargs)
    return [DeadlineAlert(reference=FirstQueued(), interval=pipeline.deadline, callback=callback)]


def tell(pipeline: str, troubles: Sequence[Trouble] = ()) -> None:
    """Tell of troubles of a pipeline, and which others are over by what the ledger shows. Whoever calls goes on.

    Where the ledger can't be had, the troubles are told at once and for this time alone.
    """
    if not _recorded(pipeline, troubles):
        _warn(send_unrecorded(channels_here(load_settings()), troubles, within=SEND_WITHIN))


def look() -> None:
    """Tell of what the ledger shows to be wrong or over, remind people, and send what was not taken.

    Raises AirflowException where a destination does not take what was tried, or a pipeline could not be looked at.
    """
    settings = load_settings()
    if problems := _outbox(settings).look(load_files(settings.pipelines)).problems:
        raise AirflowException("; ".join(problems))


def _recorded(pipeline: str, troubles: Sequence[Trouble]) -> bool:
    """Tell of troubles by the ledger, if anybody is to be told; return False where it can't be had."""
    settings = load_settings()
    if not named(settings):
        return True
    try:
        box = _outbox(settings)
        box.tell(pipeline, troubles)
    except LEDGER_AWAY as error:
        log.warning("alerts can't be kept in the ledger: %s", _first_line(error))
        return False
    try:
        _warn(box.send(pipeline, within=SEND_WITHIN))
    except LEDGER_AWAY as error:
        log.warning("alerts are kept, and the DAG sluice_alerts sends what is left: %s", _first_line(error))
    return True


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _warn(done: SendResult) -> None:
    for problem in done.problems:
        log.warning("an alert was not taken: %s", problem)


def _outbox(settings: Settings) -> Outbox:
    return Outbox(
        dsn=find_postgres(settings_here()),
        destinations=named(settings),
        channels=channels_here(settings),
        page_of=page_of,
    )


def channels_here(settings: Settings) -> list[Channel]:
    """Make the channels of all destinations, by Airflow's Connections where the settings name one."""
    by_airflow = _mail(settings.connections.get("smtp", "smtp_default"), recipients(settings))
    return channels(settings, addresses_here(settings), by_airflow)


def _mail(connection: str, to: list[str]) -> Channel:
    """Make the channel of mails that go by Airflow's Connection."""

    def send(notice: Notice) -> None:
        from airflow.providers.smtp.hooks.smtp import SmtpHook

        content = "".join(f"<p>{html.escape(line)}</p>" for line in ways.text(notice).split("\n\n"))
        failed = f"no mail went by Airflow's Connection {connection}"
        with ways.mail_errors(failed, AirflowException), SmtpHook(smtp_conn_id=connection) as hook:
            hook.send_email_smtp(to=to, subject=ways.subject(notice), html_content=content, from_email=to[0])

    return Channel(name="email", send=send)


def page_of(pipeline: str) -> str | None:
    """Return the address of a pipeline's page; None where Airflow's own is not known."""
    base = str(conf.get("api", "base_url", fallback="")).rstrip("/")
    return f"{base}{PAGES}/{quote(pipeline, safe='')}/" if base.startswith("http") else None
