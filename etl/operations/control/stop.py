"""Asks a run on any machine to stop, through the ledger, and waits for its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from etl.common.database import migrate, row, transaction
from etl.common.errors import Busy
from etl.common.statements import Statements
from etl.ledger import leases

STATEMENTS = Statements(__name__)

LOOK_SECONDS = 0.5
DIED = "died"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The run that was asked to stop, and how it ended."""

    holder: str  # host and process
    outcome: str  # `stopped`, `done`, `died`, or the name of an error


def stop(
    dsn: str, pipeline: str, *, who: str, timeout: timedelta, asked: Callable[[str], None] = lambda _: None
) -> Ended | None:
    """Ask the run of a pipeline to end after the batch in flight, and wait until it has; return None if nothing runs.

    `asked` is told the holder. Raises Busy when the run has not ended in time: it stays asked, and ends after
    its batch.
    """
    migrate(dsn)
    with transaction(dsn) as cursor:
        found = row(STATEMENTS.execute(cursor, "ask_to_stop", pipeline=pipeline, who=who))
    if found is None:
        return None
    asked(found["holder"])
    deadline = time.monotonic() + timeout.total_seconds()
    while (outcome := _outcome(dsn, found["run_id"], found["holder"])) is None:
        if time.monotonic() > deadline:
            raise Busy(
                f"The run of {pipeline} on {found['holder']} was asked to stop and is still in its batch after"
                f" {timeout.total_seconds():g} s",
                remedy=f"it ends after that batch; `sluice stop {pipeline}` waits again",
            )
        time.sleep(LOOK_SECONDS)
    return Ended(holder=found["holder"], outcome=outcome)


def _outcome(dsn: str, run_id: str, holder: str) -> str | None:
    """Return how the run ended, None while it lives."""
    with transaction(dsn) as cursor:
        found = row(STATEMENTS.execute(cursor, "run_ended", run=run_id, silence=leases.SILENCE))
    assert found is not None
    if found["outcome"] is not None and not found["holds"]:
        return str(found["outcome"])
    return DIED if not found["fresh"] or leases.is_dead(holder) else None
