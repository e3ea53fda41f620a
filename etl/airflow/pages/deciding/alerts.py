"""Shows a pipeline's alerts, and takes one up: a person says that they have it, and nobody is reminded of it any more."""

from __future__ import annotations

from etl.airflow.pages.deciding.choices import AlertChoice
from etl.airflow.pages.render import Frame, NotThere, Page, pipeline_row, render
from etl.common.database import Cursor, transaction
from etl.common.errors import NeedsPerson
from etl.ledger.telemetry import alerts
from etl.ledger.telemetry.alerts import Alert

LISTED = 50  # the newest


def listed(cursor: Cursor, pipeline: str, frame: Frame) -> Page:
    """List the pipeline's alerts, those that are over as well."""
    row = pipeline_row(cursor, pipeline)
    found = alerts.alerts(cursor, pipeline, closed=True, limit=LISTED)
    return render("alerts.html", frame, row=row, found=found)


def asked(cursor: Cursor, frame: Frame, choice: AlertChoice, *, note: str) -> Page:
    """Ask whether the reader takes the alert up. Raises NotThere where it is not there for that."""
    row, alert = pipeline_row(cursor, choice.pipeline), _open(cursor, choice)
    if alert is None:
        raise NotThere(f"Alert {choice.alert} of {choice.pipeline} is over, was taken up, or never was")
    return render("acknowledge.html", frame, row=row, alert=alert, note=note)


def take_up(dsn: str, choice: AlertChoice, *, who: str) -> None:
    """Note who has taken the alert up. Raises NeedsPerson where it is over, or somebody has it."""
    with transaction(dsn) as cursor:
        if _open(cursor, choice) is None or not alerts.acknowledge(cursor, [choice.alert], who):
            raise NeedsPerson(
                f"Alert {choice.alert} is over by now, or somebody has taken it up. Nothing was changed",
                remedy=f"sluice alerts list {choice.pipeline}",
            )


def _open(cursor: Cursor, choice: AlertChoice) -> Alert | None:
    """Return the alert where it is of the pipeline, is open, and nobody has taken it up."""
    found = alerts.alert(cursor, choice.pipeline, choice.alert)
    return None if found is None or found.resolved_by or found.acknowledged_by else found
