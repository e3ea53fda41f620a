"""Opens, ends and sends alerts, by an outbox in the ledger: what a destination does not take is sent again.

A message is locked while it is sent, so that of two senders one sends it. It goes out at least once: a sender that dies in
between sends it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from etl.alerts import watch
from etl.alerts.channels import Channel, NotTaken
from etl.alerts.notice import Notice
from etl.common.database import Cursor, transaction
from etl.common.migrations import migrate
from etl.common.outcome import without_secrets
from etl.common.wording import visible
from etl.ledger.telemetry import alerts
from etl.ledger.telemetry.alerts import Message, Trouble
from etl.pipeline import Pipeline

log = logging.getLogger("sluice")

LONGEST = 10_000  # characters of a trouble's text
TRIES = 4  # of what no ledger keeps, with pauses of 1, 2 and 4 s
PageOf = Callable[[str], str | None]  # the address of a pipeline's page


def no_page(_: str) -> None:
    """Name no page."""


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """What became of messages."""

    sent: int
    problems: tuple[str, ...]  # why others were not, a sentence each


@dataclass(frozen=True, kw_only=True)
class Outbox:
    """The ledger's outbox of alerts, and where its messages go."""

    dsn: str
    channels: Sequence[Channel]
    page_of: PageOf = no_page

    @property
    def destinations(self) -> list[str]:
        return [one.name for one in self.channels]

    def tell(self, trouble: Trouble) -> Delivered:
        """Open an alert, or count the open one once more, and send what is due; first end what is over meanwhile."""
        migrate(self.dsn)
        with transaction(self.dsn) as cursor:
            alerts.settle(cursor, trouble.pipeline)
            alerts.open_alert(cursor, fit(trouble), self.destinations)
        return self.send(trouble.pipeline)

    def end(self, pipeline: str, kind: str, about: str, by: str) -> Delivered:
        """End the open alert of a pipeline, kind and matter, if there is one, and send what is due."""
        migrate(self.dsn)
        with transaction(self.dsn) as cursor:
            alerts.end_trouble(cursor, pipeline, kind, about, by)
        return self.send(pipeline)

    def settle(self, pipeline: str | None = None) -> Delivered:
        """End what the ledger shows to be over, of one pipeline or of all, and send what is due."""
        migrate(self.dsn)
        with transaction(self.dsn) as cursor:
            alerts.settle(cursor, pipeline)
        return self.send(pipeline)

    def look(self, pipelines: Iterable[Pipeline]) -> Delivered:
        """End what is over, see to each pipeline's thresholds and reminders, and send all that is due."""
        migrate(self.dsn)
        with transaction(self.dsn) as cursor:
            alerts.settle(cursor, None)
        for pipeline in pipelines:
            with transaction(self.dsn) as cursor:
                self._watch(cursor, pipeline)
        return self.send()

    def _watch(self, cursor: Cursor, pipeline: Pipeline) -> None:
        for kind, trouble in watch.found(cursor, pipeline).items():
            if trouble is None:
                alerts.end_trouble(cursor, pipeline.name, kind, "", "it is as declared again")
            else:
                alerts.open_alert(cursor, trouble, self.destinations, again=False)
        if pipeline.alert_repeat is not None:
            alerts.remind(cursor, pipeline.name, pipeline.alert_repeat)

    def send(self, pipeline: str | None = None) -> Delivered:
        """Send the messages that are due, each in a transaction of its own; what is not taken stays."""
        sent, after, problems = 0, 0, []
        channels = {one.name: one for one in self.channels}
        while channels:
            with transaction(self.dsn) as cursor:
                due = alerts.next_due(cursor, list(channels), after=after, pipeline=pipeline)
                if due is None:
                    break
                after = due.message_id
                if (problem := self._hand_over(cursor, due, channels[due.destination])) is None:
                    sent += 1
                    continue
            problems.append(f"{due.destination}: {problem}")
            del channels[due.destination]  # it would not take the next one either
        return Delivered(sent=sent, problems=tuple(problems))

    def _hand_over(self, cursor: Cursor, due: Message, channel: Channel) -> str | None:
        """Send one message; return why it was not taken, if so."""
        notice = Notice(event=due.event, trouble=due.alert, page=self.page_of(due.alert.pipeline))
        try:
            channel.send(notice)
        except NotTaken as refused:
            alerts.not_taken(cursor, due, str(refused))
            return str(refused)
        alerts.sent(cursor, due)
        return None


def fit(trouble: Trouble) -> Trouble:
    """Return a trouble as it may leave the house: without what looks like a secret, and no longer than LONGEST.

    Its text may hold bytes of the data that neither PostgreSQL nor a mail takes.
    """
    lines = without_secrets(trouble.text[: LONGEST * 2]).splitlines()
    return replace(trouble, text="\n".join(map(visible, lines))[:LONGEST], about=visible(trouble.about))


def send_unrecorded(channels: Sequence[Channel], trouble: Trouble) -> Delivered:
    """Send a trouble where the ledger can't be had: each destination gets TRIES, within seconds, and no more later."""
    sent, problems = 0, []
    notice = Notice(event="triggered", trouble=fit(trouble))
    for channel in channels:
        try:
            _tries(channel.send, notice)
            sent += 1
        except NotTaken as refused:
            problems.append(f"{channel.name}: {refused}")
    return Delivered(sent=sent, problems=tuple(problems))


_tries = Retrying(
    retry=retry_if_exception_type(NotTaken),
    stop=stop_after_attempt(TRIES),
    wait=wait_exponential(multiplier=1),
    reraise=True,
)
