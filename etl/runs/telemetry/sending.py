"""Sends events to the receiver that the settings name, and notes in the ledger which it has taken."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from openlineage.client.transport.file import FileConfig, FileTransport
from openlineage.client.transport.http import HttpConfig, HttpTransport
from requests import HTTPError

from etl.common.database import transaction
from etl.common.errors import SetupError
from etl.common.migrations import migrate
from etl.common.number_ranges import NumberRange
from etl.ledger.telemetry import lineage
from etl.runs.telemetry.event import event_of
from etl.runs.telemetry.outbox import Sent, require_openlineage

if TYPE_CHECKING:
    from openlineage.client.transport import Transport

    from etl.runs.workspace import Workspace

TIMEOUT = 5.0  # seconds, of one request
AT_ONCE = 1_000  # events between two looks into the outbox
UNWELL = 500  # status from which on it takes no other event either
PATH = "api/v1/lineage"  # where a receiver takes events, unless the address has a path of its own


def send_unsent(workspace: Workspace, pipeline: str | None = None) -> Sent:
    """Send the events that were not sent yet, of one pipeline or of all, in the order of their deliveries."""
    migrate(workspace.services.postgres)
    total = 0
    while True:
        with transaction(workspace.services.postgres) as cursor:
            numbers = lineage.unsent(cursor, pipeline, limit=AT_ONCE)
        if not numbers:
            return Sent(sent=total, problems=())
        done = send(workspace, numbers)
        total += done.sent
        if not done.whole or len(numbers) < AT_ONCE:
            return Sent(sent=total, problems=done.problems)


def send_chosen(workspace: Workspace, pipeline: str, ranges: Iterable[NumberRange]) -> Sent:
    """Send the events of a pipeline's deliveries in these ranges of numbers, whether they were sent before or not."""
    dsn = workspace.services.postgres
    migrate(dsn)
    with transaction(dsn) as cursor:
        numbers = {one for first, last in ranges for one in lineage.chosen(cursor, pipeline, first, last)}
    if not numbers:
        raise SetupError(
            f"Pipeline {pipeline} has no such delivery",
            remedy=f"`sluice deliveries {pipeline}` lists the deliveries",
        )
    return send(workspace, sorted(numbers))


def send(workspace: Workspace, deliveries: Iterable[int]) -> Sent:
    """Send the events of these deliveries; stop at a receiver that is away, not at one that refuses an event."""
    address = require_openlineage(workspace.settings)
    transport = _transport(address)
    sent, problems = 0, []
    try:
        for number in deliveries:
            with transaction(workspace.services.postgres, one_snapshot=True) as cursor:
                event = event_of(cursor, workspace, number)
            try:
                transport.emit(event)
            except HTTPError as error:
                status = error.response.status_code if error.response is not None else UNWELL
                problems.append(f"OpenLineage's receiver answered {status} to the event of delivery {number}")
                if status >= UNWELL:
                    break
                continue
            except OSError as error:
                problems.append(f"OpenLineage's receiver could not be reached ({type(error).__name__})")
                break
            with transaction(workspace.services.postgres) as cursor:
                lineage.sent(cursor, number)
            sent += 1
    finally:
        transport.close()
    return Sent(sent=sent, problems=tuple(problems))


def _transport(address: str) -> Transport:
    parts = urlsplit(address)
    if parts.scheme == "file":
        return FileTransport(FileConfig(log_file_path=parts.path, append=True))
    key = os.environ.get("OPENLINEAGE_API_KEY")
    return HttpTransport(
        HttpConfig.from_dict(
            {
                "url": f"{parts.scheme}://{parts.netloc}",
                "endpoint": parts.path.strip("/") or PATH,
                "timeout": TIMEOUT,
                "retry": {"total": 1, "connect": 1, "read": 0, "status_forcelist": []},
                **({"auth": {"type": "api_key", "apiKey": key}} if key else {}),
            }
        )
    )
