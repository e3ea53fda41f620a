"""Asks a run on any machine to stop, through the ledger, and waits for its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from etl.common.database import row, transaction
from etl.common.errors import Busy
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.ledger import activity, leases
from etl.ledger.activity import Running

STATEMENTS = Statements(__name__)

LOOK_SECONDS = 0.5
DIED = "died"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The run that was asked to stop, and how it ended."""

    holder: str  # host and process
    outcome: str  # `stopped`, `done`, `died`, or the name of an error
    again: str | None = None  # the command that a recovery is to be given again; None: it was a run


def stop(
    dsn: str, pipeline: str, *, who: str, timeout: timedelta, on_asked: Callable[[str], None] = lambda _: None
) -> Ended | None:
    """Ask the run of a pipeline to end after the batch in flight, and wait until it has; return None if nothing runs.

    `on_asked` is told the holder. Raises Busy when the run has not ended in time: it stays asked, and ends after
    its batch.
    """
    migrate(dsn)
    with transaction(dsn) as cursor:
        run = row(STATEMENTS.execute(cursor, "ask_to_stop", pipeline=pipeline, who=who))
    if run is None:
        return None
    if (ended := _ended(dsn, run["run_id"])) is not None:
        return ended  # killed, and not yet known to the ledger: its process number may be another's by now
    on_asked(run["holder"])
    deadline = time.monotonic() + timeout.total_seconds()
    while (ended := _ended(dsn, run["run_id"])) is None:
        if time.monotonic() > deadline:
            raise Busy(
                f"The run of {pipeline} on {run['holder']} was asked to stop and is still in its batch after"
                f" {timeout.total_seconds():g} s",
                remedy=f"it ends after that batch; `sluice stop {pipeline}` waits again",
            )
        time.sleep(LOOK_SECONDS)
    return ended


def beside(dsn: str, pipeline: str) -> list[Running]:
    """Return the replays and releases of a pipeline that are at work, which nothing asks to stop."""
    with transaction(dsn) as cursor:
        return [one for one in activity.running(cursor, pipeline) if one.alive and one.kind != "stream"]


def _ended(dsn: str, run_id: str) -> Ended | None:
    """Return how the run ended, None while it lives."""
    with transaction(dsn) as cursor:
        run = row(STATEMENTS.execute(cursor, "run_ended", run=run_id, silence=leases.SILENCE))
    assert run is not None
    if run["outcome"] is not None and not run["holds"]:
        return Ended(holder=run["holder"], outcome=run["outcome"], again=run["again"])
    died = not run["fresh"] or leases.is_dead(run["holder"], run["process"])
    return Ended(holder=run["holder"], outcome=DIED) if died else None
