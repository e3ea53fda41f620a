"""Controls how long a run lasts: until it has delivered what has landed, or until it is asked to stop.

A signal asks it, or `sluice stop` on any machine, through the ledger. The batch in flight is brought to its end,
Spark's own mark included; no other batch begins.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

from etl.common import steps
from etl.common.database import Cursor, transaction
from etl.common.errors import Fenced, SetupError, Stopped
from etl.ledger import leases
from etl.ledger.leases import Lease
from etl.pipeline import Pipeline
from etl.spark.signals import SIGNALS, leaves, stop_at_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("sluice")

SOON = timedelta(minutes=1)
_FOLDERS = "spark.sql.sources.parallelPartitionDiscovery.threshold"  # beyond which a job lists them


# What a second signal leaves of a correction or a recovery, whose commit is under way.
COMMIT_CUT_SHORT = "its commit is in both sinks or in neither; the same command tells which"


class StopAsked(Exception):
    """A batch was not begun, because the run was asked to stop before it."""


@dataclass(kw_only=True)
class RunControl:
    """How long a run stays up, and what it has been told since. Set from several threads, each field whole."""

    every: timedelta | None = None  # how often it looks for more; None: it ends when all is read
    closed: bool = False  # it looks into closed folders as well
    awaited: int = 0  # files that had landed when it began, and are to be read
    stop_requested_by: str | None = None  # who asked it to stop
    by_signal: signal.Signals | None = None  # which it heard
    # of a delivery beside the stream: what is left where a signal ends it before its commit
    correction_left: str | None = None
    # likewise: the command that is to be given again, where `correction_left` says so
    again: str | None = None
    lost: bool = False  # another run has taken its lease
    waiting: bool = False  # it has no batch in flight
    caught_up: bool = False  # it has found once that nothing more was there to read
    heeded: bool = False  # it has ended because it was asked to

    @property
    def soon_again(self) -> bool:
        """Tell whether what a batch leaves is taken soon: by the next batch at once, or when it looks again."""
        return self.every is None or self.every <= SOON

    @property
    def over(self) -> bool:
        return self.stop_requested_by is not None or self.lost

    @property
    def stopping(self) -> str:
        """Return what a person is told at once, who has sent a signal or sees that somebody else asked."""
        if self.by_signal is None:
            return f"stopping after the batch in flight, asked by {self.stop_requested_by}"
        same_signal = "Ctrl-C" if self.by_signal == signal.SIGINT else "SIGTERM"
        what = "this batch" if self.correction_left is None else "this commit"
        return f"stopping after {what}; {same_signal} again to stop now"

    def listing(self, spark: SparkSession) -> AbstractContextManager[None]:
        """Let a query that stays up list the landing without a Spark job, however many folders it has.

        To be entered while the query starts.
        """
        from etl.spark.session import setting

        return nullcontext() if self.every is None else setting(spark, _FOLDERS, "1000000")

    def request_stop(self, by: str | None) -> None:
        """Note who asked the run to stop; who asked first stays, and None, which is nobody, takes nothing back."""
        if by is not None and self.stop_requested_by is None:
            self.stop_requested_by = by

    def ask_ledger(self, cursor: Cursor, lease: Lease) -> None:
        """Note, and log at once, who asked the run to stop by `sluice stop`; nobody may have.

        A signal that it heard is noted in the ledger: should it be killed next, it was not by its batch.
        """
        if self.by_signal is not None:
            leases.note_stop(cursor, lease, self.by_signal.name)
        by = leases.stop_asked(cursor, lease)
        if by is not None and self.stop_requested_by is None:
            log.info(
                "%s was asked to stop by %s: it ends after the batch in flight, if any",
                lease.pipeline,
                by,
            )
        self.request_stop(by)

    def require_going_on(self) -> None:
        """Raise Stopped between two steps of a command beside the stream's batches, if it was asked to stop."""
        left = self.correction_left or Stopped.LEFT
        if self.by_signal is not None:
            raise Stopped(self.by_signal, left=left, again=self.again)
        if self.stop_requested_by is not None:
            raise Stopped.asked(self.stop_requested_by, left=left, again=self.again)

    def refuse_next(self, dsn: str, lease: Lease) -> None:
        """Raise StopAsked before a batch begins if the run was asked to stop.

        It asks the ledger as well: the heartbeat alone would let short batches pass.
        """
        if self.stop_requested_by is None:
            with transaction(dsn) as cursor:
                self.ask_ledger(cursor, lease)
        if self.stop_requested_by is not None:
            self.heeded = True
            raise StopAsked(f"{lease.pipeline} was asked to stop by {self.stop_requested_by}")

    def require_lease(self, pipeline: str) -> None:
        """Raise Fenced for a waiting run whose lease is another's by now.

        It must not begin a batch beside that one.
        """
        if self.lost:
            raise Fenced.of(pipeline)


def require_follow(pipeline: Pipeline, control: RunControl) -> None:
    """Raise SetupError for a run that is to end, of a source that has no end: Spark's availableNow takes nothing of it."""
    if not pipeline.replayable and control.every is None:
        raise SetupError(
            f"Pipeline {pipeline.name} reads {pipeline.reads}, which never ends, so a run without"
            " --follow could not end",
            remedy=f"`sluice run {pipeline.name} --follow`, and `sluice stop {pipeline.name}` when it has run"
            " long enough; or declare follow=True",
        )


@contextmanager
def heeded(control: RunControl, *, quiet: bool = False) -> Iterator[None]:
    """Let the first signal end a run after the batch in flight, and a second one at once.

    What is delivered beside the stream is given up by the first signal, unless its commit is under way. With
    `quiet`, something else, such as a terminal's display, tells of what was heard.
    """

    def heard(number: int, _frame: FrameType | None) -> None:
        if control.by_signal is not None:
            left = None if control.correction_left is None else COMMIT_CUT_SHORT
            stop_at_once(number, left=left, again=control.again)
        if control.correction_left is not None and not steps.committing():
            stop_at_once(number, left=control.correction_left, again=control.again)
        control.by_signal = signal.Signals(number)
        control.request_stop(control.by_signal.name)
        if not quiet:
            os.write(2, f"{control.stopping}\n".encode())  # print may be what the signal broke into

    handlers = {number: signal.signal(number, heard) for number in SIGNALS}
    try:
        yield
    finally:
        if control.correction_left is not None:
            leaves(COMMIT_CUT_SHORT)  # of a signal while the result is told
        for number, handler in handlers.items():
            if signal.getsignal(number) == heard:  # and not ignored by now
                signal.signal(number, handler)
