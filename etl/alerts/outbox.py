"""Opens, ends and sends alerts, by an outbox in the ledger: what a destination does not take is sent again.

A sender claims a message, sends it while no transaction is open, and notes what became of it. So of two senders one sends
it, and nothing waits for a destination but the sender. It goes out at least once: where a sender dies in between, another
sends it minutes later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tenacity import Retrying, retry_if_result, stop_after_attempt, stop_after_delay, wait_exponential

from etl.alerts import watch
from etl.alerts.channels import Channel, NotTaken
from etl.alerts.notice import Notice
from etl.common.database import transaction
from etl.common.migrations import migrate
from etl.common.outcome import in_short, without_secrets
from etl.common.wording import visible
from etl.ledger.telemetry import alerts
from etl.ledger.telemetry.alerts import Trouble
from etl.pipeline import Pipeline
from etl.pipeline.loader import Loaded

LONGEST = 10_000  # characters of a trouble's text
TRIES = 4  # of what no ledger keeps, with pauses of 1, 2 and 4 s
PageOf = Callable[[str], str | None]  # the address of a pipeline's page


def no_page(_: str) -> None:
    """Name no page."""


@dataclass(frozen=True, kw_only=True)
class SendResult:
    """What became of messages."""

    sent: int
    problems: tuple[str, ...]  # why others were not, and what was not looked at


@dataclass(frozen=True, kw_only=True)
class Outbox:
    """The ledger's outbox of alerts, who is to be told, and the channels that lead there from here."""

    dsn: str
    destinations: Sequence[str]  # by name; of those without a channel here, another process sends
    channels: Sequence[Channel]
    page_of: PageOf = no_page

    def tell(self, pipeline: str, troubles: Iterable[Trouble] = ()) -> None:
        """End what is over of the pipeline, then open an alert of each trouble, or count the open one once more."""
        migrate(self.dsn)
        with transaction(self.dsn) as cursor:
            alerts.settle(cursor, pipeline)
            for trouble in troubles:
                alerts.open_alert(cursor, fit(trouble), self.destinations)

    def look(self, files: Collection[Loaded]) -> SendResult:
        """End what is over, find what has failed, is behind, late or too little, remind people, and send all that is due."""
        migrate(self.dsn)
        problems = []
        with transaction(self.dsn) as cursor:
            alerts.settle(cursor, None)
            for trouble in watch.failures(cursor):
                alerts.open_alert(cursor, fit(trouble), self.destinations)
            for trouble in watch.lags(cursor):
                alerts.open_alert(cursor, fit(trouble), self.destinations, again=False)
        right = [one.right for one in files if one.right is not None]
        for pipeline in right:
            try:
                self._watch(pipeline)
            except Exception as error:  # noqa: BLE001 - the other pipelines' alerts are sent all the same
                problems.append(f"{pipeline.name} could not be looked at: {in_short(error)}")
        with transaction(self.dsn) as cursor:
            alerts.end_thresholds_beyond(cursor, {one.name for one in files}, "no file declares the pipeline")
            repeats = {one.name: one.alert_repeat for one in right}
            alerts.remind(cursor, repeats, otherwise=Pipeline.alert_repeat)
        done = self.send()
        return replace(done, problems=(*problems, *done.problems))

    def _watch(self, pipeline: Pipeline) -> None:
        with transaction(self.dsn) as cursor:
            for trouble_of_records in watch.records(cursor, pipeline):
                alerts.open_alert(cursor, fit(trouble_of_records), self.destinations)
        with transaction(self.dsn) as cursor:
            for kind, trouble in watch.thresholds(cursor, pipeline).items():
                if trouble is None:
                    alerts.end_trouble(cursor, pipeline.name, kind, "", "it is as declared again")
                else:
                    alerts.open_alert(cursor, trouble, self.destinations, again=False)

    def send(self, pipeline: str | None = None, *, within: float = math.inf) -> SendResult:
        """Send the messages that are due, and begin none after so many seconds; what is not taken stays."""
        sent, problems, until = 0, [], time.monotonic() + within
        channels = {one.name: one for one in self.channels}
        while channels and time.monotonic() < until:
            with transaction(self.dsn) as cursor:
                due = alerts.claim(cursor, list(channels), pipeline)
            if due is None:
                break
            page = self.page_of(due.alert.pipeline) if due.on_record else None
            problem = refusal(
                channels[due.destination].send, Notice(event=due.event, trouble=due.alert, page=page)
            )
            with transaction(self.dsn) as cursor:
                alerts.note(cursor, due, problem)
            if problem is None:
                sent += 1
            else:
                problems.append(f"{due.destination}: {problem}")
                del channels[due.destination]  # it would not take the next one either
        return SendResult(sent=sent, problems=tuple(problems))


def refusal(send: Callable[[Notice], None], notice: Notice) -> str | None:
    """Send a message; return why it was not taken, if so, without any text of a library's, which may name an address."""
    try:
        send(notice)
    except NotTaken as refused:
        return str(refused)
    except Exception as error:  # noqa: BLE001 - it is on record, and the other destinations are told
        return f"it could not be sent ({type(error).__name__})"
    return None


def fit(trouble: Trouble) -> Trouble:
    """Return a trouble as it may leave the house: without what looks like a secret, and no longer than LONGEST.

    Its text may hold bytes of the data that neither PostgreSQL nor a mail takes.
    """
    lines = without_secrets(trouble.text[: LONGEST * 2]).splitlines()
    return replace(trouble, text="\n".join(map(visible, lines))[:LONGEST], about=visible(trouble.about))


def send_unrecorded(channels: Sequence[Channel], troubles: Iterable[Trouble], *, within: float) -> SendResult:
    """Send troubles where the ledger can't be had: each destination gets TRIES, none again after so many seconds."""
    sent, problems, until = 0, [], time.monotonic() + within
    for notice in (Notice(event="triggered", trouble=fit(one)) for one in troubles):
        for channel in channels:
            if problem := _tried(channel, notice, within=until - time.monotonic()):
                problems.append(f"{channel.name}: {problem}")
            else:
                sent += 1
    return SendResult(sent=sent, problems=tuple(problems))


def _tried(channel: Channel, notice: Notice, *, within: float) -> str | None:
    """Try to send a message, at least once; return why it was not taken the last time, if so."""
    tries = Retrying(
        retry=retry_if_result(bool),
        stop=stop_after_attempt(TRIES) | stop_after_delay(within),
        wait=wait_exponential(multiplier=1),
        retry_error_callback=lambda state: state.outcome and state.outcome.result(),
    )
    return tries(refusal, channel.send, notice)
