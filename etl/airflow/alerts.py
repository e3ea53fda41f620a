"""Alerts of what Airflow's tasks, deadlines and looks find: told by the ledger's outbox, from Airflow's own processes.

The settings, read with the DAG, say whether there is anybody to tell. Addresses and keys, which often are secrets, are read
only when a message is sent: they are in no DAG, not in Airflow's database and on no page.
"""

from __future__ import annotations

import asyncio
import html
import logging
import smtplib
from collections.abc import Callable
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
from etl.alerts.channels import Channel, NotTaken
from etl.alerts.notice import Notice
from etl.alerts.outbox import Delivered, Outbox, send_unrecorded
from etl.alerts.places import channels, named, recipients
from etl.common.errors import SluiceError
from etl.common.settings import Settings, load_settings
from etl.ledger.telemetry.alerts import Trouble
from etl.pipeline import Pipeline, loadable
from etl.services import find_postgres

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger("sluice")

_WHY = "{{ exception | default('its worker was lost') }}"  # then the DAG processor calls back, without an exception
FAILED = "{{ dag.dag_id }} failed: " + _WHY
RESTARTED = "{{ dag.dag_id }} died and will be started again: " + _WHY
TASK_FAILED = "{{ task.task_id }} failed: " + _WHY
QUARANTINE = "{pipeline} holds {share:.2%} of a run's records in quarantine, more than {limit:.2%}"
DROPPED = "{pipeline}: of what a run read {left_out}"
DRIFTED = "{pipeline}: for the first time since the delivery before, {drift}"
LAGGING = "{pipeline}: {late}; `sluice consumers {pipeline}` lists all of them"
QUESTION = "{subject} Until somebody answers, the run waits: {address}"
WAITING = "{pipeline} still waits, and goes on to for hours: {error}"
DEADLINE = "{pipeline} has not ended within {limit} of being queued"

OF_RESTART, OF_REPLAYS = (
    "restart",
    "replays",
)  # what a failure may be about, beside a task of the maintenance's DAG
_SHARED = (OSError, SluiceError, psycopg2.Error)  # what keeps an alert from the ledger


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
        tell(Trouble(pipeline=self.pipeline, kind=self.kind, text=self.text, about=self.about))

    async def async_notify(self, context: Context) -> None:
        await asyncio.to_thread(self.notify, context)


class EndNotifier(BaseNotifier):
    """Tells that a failure is over because its task has come to a good end."""

    def __init__(self, *, pipeline: str, about: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.about = about

    def notify(self, context: Context) -> None:  # noqa: ARG002 - likewise
        _by_outbox(lambda box: box.end(self.pipeline, "failed", self.about, f"its {self.about} ended well"))


def notifiers(kind: str, pipeline: str, text: str, about: str = "") -> list[BaseNotifier]:
    """Make what tells of a trouble; none where the settings name nobody to tell."""
    if not named(load_settings()):
        return []
    return [AlertNotifier(kind=kind, pipeline=pipeline, text=text, about=about)]


def ends(pipeline: str, about: str) -> list[BaseNotifier]:
    """Make what tells that a failure is over; none where the settings name nobody to tell."""
    return [EndNotifier(pipeline=pipeline, about=about)] if named(load_settings()) else []


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


def tell(trouble: Trouble) -> None:
    """Tell of a trouble; where the ledger can't be had at once and for this time alone. Whoever calls goes on."""
    if not _by_outbox(lambda box: box.tell(trouble)) and (places := channels_here(load_settings())):
        _warn(send_unrecorded(places, trouble))


def look() -> None:
    """Tell of data that is late or too little, remind people, tell what is over, and send what was not taken.

    Raises AirflowException where something is left, or the ledger can't be had: the task's log says what.
    """
    pipelines = loadable(load_settings().pipelines).values()
    left: list[str] = []

    def done(box: Outbox) -> Delivered:
        found = box.look(pipelines)
        left.extend(found.problems)
        return found

    if not _by_outbox(done) or left:
        raise AirflowException("; ".join(left) or "the ledger can't be had")


def settle(pipeline: str) -> None:
    """Tell which troubles of a pipeline are over, by what the ledger shows."""
    _by_outbox(lambda box: box.settle(pipeline))


def _by_outbox(do: Callable[[Outbox], Delivered]) -> bool:
    """Do something with the outbox, if anybody is to be told; return False where the ledger can't be had."""
    settings = load_settings()
    if not (places := channels_here(settings)):
        return True
    try:
        done = do(Outbox(dsn=find_postgres(settings_here()), channels=places, page_of=page_of))
    except _SHARED as error:
        log.warning("alerts can't be kept in the ledger: %s", str(error).partition("\n")[0])
        return False
    _warn(done)
    return True


def _warn(done: Delivered) -> None:
    for problem in done.problems:
        log.warning("an alert was not taken by %s", problem)


def channels_here(settings: Settings) -> list[Channel]:
    """Make the channels of all destinations, by Airflow's Connections where the settings name one."""
    by_airflow = _mail(settings.connections.get("smtp", "smtp_default"), recipients(settings))
    return channels(settings, addresses_here(settings), by_airflow)


def _mail(connection: str, to: list[str]) -> Channel:
    """Make the channel of mails that go by Airflow's Connection."""

    def send(notice: Notice) -> None:
        from airflow.providers.smtp.hooks.smtp import SmtpHook

        content = "".join(f"<p>{html.escape(line)}</p>" for line in ways.text(notice).split("\n\n"))
        try:
            with SmtpHook(smtp_conn_id=connection) as hook:
                hook.send_email_smtp(
                    to=to, subject=ways.subject(notice), html_content=content, from_email=to[0]
                )
        except smtplib.SMTPResponseException as error:
            raise NotTaken(f"the mail server answered {error.smtp_code}") from None
        except (AirflowException, smtplib.SMTPException, OSError, ValueError) as error:
            raise NotTaken(
                f"no mail went by Airflow's Connection {connection} ({type(error).__name__})"
            ) from None

    return Channel(name="email", send=send)


def page_of(pipeline: str) -> str | None:
    """Return the address of a pipeline's page; None where Airflow's own is not known."""
    place = str(conf.get("api", "base_url", fallback="")).rstrip("/")
    return f"{place}{PAGES}/{quote(pipeline, safe='')}/" if place.startswith("http") else None
