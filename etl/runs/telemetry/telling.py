"""Sends OpenLineage events beside a run, from rows that its commits wrote; a receiver that is away fails no run.

An event is sent at least once, and always as the same run of the same job, so that a receiver that has it already changes
nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import psycopg2

from etl.common.errors import SluiceError
from etl.runs.telemetry.outbox import require_openlineage

if TYPE_CHECKING:
    from etl.runs.workspace import Workspace

log = logging.getLogger("sluice")

P = ParamSpec("P")
T = TypeVar("T")

EVERY = 5.0  # seconds between two looks of a run for what is to be sent


def telling_lineage(
    deliver: Callable[Concatenate[Workspace, P], T],
) -> Callable[Concatenate[Workspace, P], T]:
    """Send the events of what `deliver` delivers, and at its end all that are unsent, where the setting is on."""

    @wraps(deliver)
    def telling(workspace: Workspace, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if workspace.settings.openlineage is None:
            return deliver(workspace, *args, **kwargs)
        require_openlineage(workspace.settings)  # before anything is delivered; nothing fails after that
        with _sending(workspace):
            return deliver(workspace, *args, **kwargs)

    return telling


@contextmanager
def _sending(workspace: Workspace) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=_send_until, args=(workspace, ended), name="lineage", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _send_until(workspace: Workspace, ended: threading.Event) -> None:
    """Send what is to be sent, every few seconds and once more at the end; warn once of each problem."""
    from etl.runs.telemetry.sending import send_unsent

    told: set[str] = set()
    last = False
    while not last:
        last = ended.wait(EVERY)
        try:
            problems = send_unsent(workspace).problems
        except (OSError, SluiceError, psycopg2.Error) as error:
            problems = (str(error),)
        for problem in problems:
            if problem not in told:
                log.warning("%s. What was delivered stays so; `sluice lineage` sends what is left", problem)
        told.update(problems)
