"""An outbox over a ledger, and two real receivers that it tells of troubles of a pipeline `taps`."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from etl.alerts.channels import chat
from etl.alerts.outbox import Outbox, SendResult
from etl.common.database import transaction
from etl.ledger.telemetry import alerts
from etl.ledger.telemetry.alerts import Trouble
from etl.pipeline import Pipeline
from etl.pipeline.loader import Loaded
from tests.support import arrow_driver
from tests.support.ledger_rows import Ledger
from tests.support.receivers import Receiver, receiving

FAILED = Trouble(pipeline="taps", kind="failed", text="taps failed: exit code 70")
HOUR = dt.timedelta(hours=1)


@dataclass(kw_only=True)
class Told:
    """An outbox, and the two that it tells."""

    ledger: Ledger
    ours: Receiver
    slack: Receiver
    outbox: Outbox = field(init=False)

    def __post_init__(self) -> None:
        channels = (chat("slack", lambda: self.slack.address), chat("webhook", lambda: self.ours.address))
        self.outbox = Outbox(dsn=self.ledger.dsn, destinations=["slack", "webhook"], channels=channels)

    @property
    def events(self) -> list[str]:
        return [one["event"] for one in self.messages]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.ours.taken]

    @property
    def titles(self) -> list[str]:
        """Return what the messages to Slack begin with."""
        return [json.loads(body)["blocks"][0]["text"]["text"] for _, body in self.slack.taken]

    @property
    def number(self) -> int:
        with transaction(self.ledger.dsn) as cursor:
            return alerts.alerts(cursor, None)[0].alert.alert_id

    def later(self, by: dt.timedelta) -> None:
        """Let that much time pass for the messages."""
        self.ledger.execute(
            "UPDATE sluice.alert_message SET made_at = made_at - %s, due_at = due_at - %s, sent_at = sent_at - %s",
            *(by, by, by),
        )

    def tell(self, *troubles: Trouble) -> SendResult:
        self.outbox.tell("taps", troubles)
        return self.outbox.send()

    def settle(self) -> None:
        self.tell()

    def look(self, *pipelines: Pipeline) -> SendResult:
        """Look as where each is declared by a file, and nothing is wrong with it."""
        return self.outbox.look([Loaded(file=Path("taps.py"), pipeline=one, wrong=()) for one in pipelines])

    def acknowledge(self) -> None:
        with transaction(self.ledger.dsn) as cursor:
            alerts.acknowledge(cursor, [self.number], "ann")
        self.outbox.send()

    def remind(self) -> None:
        with transaction(self.ledger.dsn) as cursor:
            alerts.remind(cursor, {"taps": HOUR}, otherwise=None)
        self.outbox.send()


@pytest.fixture
def told(dsn: str) -> Iterator[Told]:
    ledger = Ledger(dsn=dsn)
    ledger.begin()
    with receiving() as ours, receiving() as slack:
        yield Told(ledger=ledger, ours=ours, slack=slack)


def pipeline(**declared: Any) -> Pipeline:
    return replace(arrow_driver.pipeline("taps"), **declared)
