"""How long a run stays: to the end of what has landed, or until it is asked to stop.

It is asked by a signal, or by `sluice stop` on whatever machine, through the ledger. The batch in flight is brought
to its end, Spark's own mark included; the next one is not begun.
"""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from etl import ledger
from etl.database import session
from etl.errors import Fenced
from etl.ledger import Lease
from etl.sparksession import setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDERS = "spark.sql.sources.parallelPartitionDiscovery.threshold"  # beyond which a job lists them


class StopAsked(Exception):
    """A batch was not begun, for the run was asked to stop before it."""


@dataclass(kw_only=True)
class Stay:
    """Whether a run stays up, and what it has been told since. Set from several threads, each field whole."""

    every: timedelta | None = None  # how often it looks for more; None: it ends when all is read
    asked_by: str | None = None  # who asked it to stop
    by_signal: signal.Signals | None = None  # which it heard
    beside: str | None = (
        None  # of a delivery beside the stream: what is left where a signal ends it before its commit
    )
    lost: bool = False  # another run has taken its lease
    waiting: bool = False  # it has no batch in flight
    caught_up: bool = False  # it has found once that nothing more was there to read
    heeded: bool = False  # it has ended because it was asked to

    @property
    def over(self) -> bool:
        return self.asked_by is not None or self.lost

    @property
    def stopping(self) -> str:
        """What a person is told at once who has sent a signal."""
        again = "Ctrl-C" if self.by_signal == signal.SIGINT else "SIGTERM"
        what = "this batch" if self.beside is None else "this commit"
        return f"stopping after {what}; {again} again to stop now"

    def listing(self, spark: SparkSession) -> AbstractContextManager[None]:
        """While a query starts that stays up: a trigger lists the landing without a job, however many folders it has."""
        return nullcontext() if self.every is None else setting(spark, _FOLDERS, "1000000")

    def ask(self, by: str | None) -> None:
        """Who asked first stays; None, that nobody has, takes nothing back."""
        if by is not None and self.asked_by is None:
            self.asked_by = by

    def refuse_next(self, dsn: str, lease: Lease) -> None:
        """Before a batch begins; raises StopAsked. The heartbeat alone would let short batches pass."""
        if self.asked_by is None:
            with session(dsn) as cursor:
                self.ask(ledger.stop_asked(cursor, lease))
        if self.asked_by is not None:
            self.heeded = True
            raise StopAsked(f"{lease.pipeline} was asked to stop by {self.asked_by}")

    def require_lease(self, pipeline: str) -> None:
        """A run that waits, and whose lease is another's by now, must not begin a batch beside that one."""
        if self.lost:
            raise Fenced.of(pipeline)
