"""The consumers of a pipeline on the pages: where each is, how far behind, and since when it has not moved."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from etl.common.database import Cursor
from etl.ledger import consumers
from etl.ledger.consumers import ConsumerLag, LateConsumer

MOST = 50  # consumers in a list


@dataclass(frozen=True, kw_only=True)
class Consumers:
    """The consumers of one pipeline, the furthest behind first."""

    shown: Sequence[ConsumerLag]
    left_out: int
    late: int  # of all of them: how many are further behind than they may be
    now: dt.datetime  # of the database

    @property
    def limit(self) -> dt.timedelta | None:
        """Return how far behind they may be; None: that is not said."""
        seconds = self.shown[0].limit_seconds if self.shown else None
        return None if seconds is None else dt.timedelta(seconds=seconds)


def consumers_of(cursor: Cursor, pipeline: str, now: dt.datetime) -> Consumers:
    """Return the pipeline's consumers with their lag."""
    found = sorted(consumers.lags(cursor, pipeline), key=lambda one: -(one.seconds or 0))
    late = sum(one.late for one in found)
    return Consumers(shown=found[:MOST], left_out=max(len(found) - MOST, 0), late=late, now=now)


def late_by_pipeline(cursor: Cursor, pipelines: Sequence[str]) -> dict[str, list[LateConsumer]]:
    """Return the consumers of each of these pipelines that are further behind than they may be, the furthest first."""
    found: dict[str, list[LateConsumer]] = {}
    for one in consumers.late(cursor, pipelines):
        found.setdefault(one.pipeline, []).append(one)
    return found
