"""Tells which consumers have fallen behind by more than the pipeline declares, once and again as that doubles."""

from __future__ import annotations

from etl.common.database import rows_as, transaction
from etl.common.statements import Statements
from etl.ledger.consumers import LateConsumer

STATEMENTS = Statements(__name__)


def newly_late(dsn: str, pipeline: str) -> list[LateConsumer]:
    """Return the consumers of which no try that ended well has told, or that are twice as far behind as one has.

    What such a try saw follows from when it ended, so nothing is noted for it.
    """
    with transaction(dsn) as cursor:
        return rows_as(STATEMENTS.execute(cursor, "newly_late", pipeline=pipeline), LateConsumer)
