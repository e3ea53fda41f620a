"""Lists a pipeline's deliveries in the order of their commits, with what became of each."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from etl.common.database import rows_as, transaction
from etl.common.migrations import migrate
from etl.common.number_ranges import in_ranges
from etl.common.statements import Statements
from etl.common.wording import first_few

STATEMENTS = Statements(__name__)

IN_FORCE = "in force"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One commit into both sinks."""

    delivery_id: int
    commit_seq: int  # the number of its commit among the pipeline's
    kind: str  # stream, replay, release or withdrawal
    stream_id: str
    batch_id: int
    records: int | None  # that were read, where the transform keeps state
    rows_in: int
    delivered: int
    quarantined: int  # when it was committed
    held: int  # of these, the ones that still are
    committed_at: dt.datetime
    superseded_by: int | None  # the delivery that took its place; None: it is in force
    superseded_kind: str | None
    released_from: int | None  # of a release the delivery that had held its rows
    replaced: Sequence[int]  # the deliveries whose places it took

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def what(self) -> str:
        """Return the delivery's kind, and of a correction what it corrected."""
        if self.released_from is not None:
            return f"{self.kind} of {self.released_from}"
        return f"{self.kind} of {first_few(in_ranges(self.replaced))}" if self.replaced else self.kind

    @property
    def now(self) -> str:
        """Say whether the delivery is in force, or what took its place."""
        if self.superseded_by is None:
            return IN_FORCE
        how = "withdrawn" if self.superseded_kind == "withdrawal" else "replaced"
        return f"{how} by {self.superseded_by}"


@dataclass(frozen=True, kw_only=True)
class Deliveries:
    """The newest deliveries of a pipeline, the last commit first, and how many there are."""

    newest: Sequence[Delivery]
    of: int


def newest_deliveries(dsn: str, pipeline: str, *, last: int) -> Deliveries:
    """Read the pipeline's `last` deliveries from the ledger; the pipeline need not be declared any more."""
    migrate(dsn)
    with transaction(dsn) as cursor:
        (count,) = STATEMENTS.execute(cursor, "how_many", pipeline=pipeline).fetchone() or (0,)
        STATEMENTS.execute(cursor, "newest", pipeline=pipeline, last=last)
        return Deliveries(newest=rows_as(cursor, Delivery), of=count)
