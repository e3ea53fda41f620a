"""Words a message about an alert, before it takes the form of a destination."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from etl.common.wording import pluralize
from etl.ledger.telemetry.alerts import Alert, Event, Trouble

# How bad each kind is, in PagerDuty's words.
SEVERITIES = {
    "failed": "critical",
    "question": "error",
    "waiting": "error",
    "deadline": "error",
    "freshness": "error",
    "quarantine": "warning",
    "dropped": "warning",
    "volume": "warning",
    "consumer": "warning",
    "drift": "info",
}
TITLES: dict[Event, str] = {
    "triggered": "{pipeline}: {kind}",
    "reminder": "Still open: {pipeline}: {kind}",
    "acknowledged": "Acknowledged: {pipeline}: {kind}",
    "resolved": "Resolved: {pipeline}: {kind}",
}


@dataclass(frozen=True, kw_only=True)
class Notice:
    """What one message says."""

    event: Event
    trouble: Trouble  # an Alert, where the ledger has it
    page: str | None = None  # the address of the pipeline's page

    @property
    def severity(self) -> str:
        return SEVERITIES.get(self.trouble.kind, "error")

    @property
    def title(self) -> str:
        """Return the message's first line."""
        return TITLES[self.event].format(pipeline=self.trouble.pipeline, kind=self.trouble.kind)

    @property
    def notes(self) -> Sequence[str]:
        """Return what else is known, a sentence each: since when, who has it, what ended it, which command comes next."""
        alert = self.trouble
        if not isinstance(alert, Alert):
            return ()
        found = []
        if self.event == "reminder":
            times = f", found {pluralize(alert.times, 'time')}" if alert.times > 1 else ""
            found.append(f"Open since {_moment(alert.opened_at)}{times}")
        if self.event == "acknowledged":
            found.append(f"{alert.acknowledged_by} has taken it up")
        if self.event == "resolved":
            found.append(f"It was open since {_moment(alert.opened_at)}; {alert.resolved_by}")
        if self.event in ("triggered", "reminder"):
            found.append(f"To take it up: `sluice alerts acknowledge {alert.alert_id}`")
        return found


def _moment(at: dt.datetime) -> str:
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"
