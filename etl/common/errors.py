"""The ways in which a command can fail: each error has an exit code and says what was seen, against what limit,
where the evidence is, and which command comes next."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from etl.common.wording import pluralize

if TYPE_CHECKING:
    from concurrent.futures import Future


class SluiceError(Exception):
    """A failure that a person can act on: printed as one message, never as a traceback.

    `seen` says what was found, against what limit and where the evidence is; `remedy` is the next step.
    """

    exit_code = 70

    def __init__(self, seen: str, *, remedy: str) -> None:
        super().__init__(f"{seen}\n  next: {remedy}")
        self.seen = seen
        self.done: object = None  # what the run had delivered before; its Summary
        self.remedy = remedy


class SetupError(SluiceError):
    """The machine, the settings or a declaration are not as needed; nothing was started (exit 2)."""

    exit_code = 2


class TableRefused(SluiceError):
    """The user's table can't take this pipeline's rows safely; nothing was delivered (exit 2)."""

    exit_code = 2


class InputsDoubled(SetupError):
    """A file that two patterns of a pipeline match, or that has two names by a link; it was not delivered (exit 2)."""


class ContractBroken(SluiceError):
    """A batch broke its suite: nothing of it is delivered, and nothing after it (exit 3)."""

    exit_code = 3


class NeedsPerson(SluiceError):
    """State that the software must not guess about; nothing was changed (exit 4)."""

    exit_code = 4


class CheckpointLost(NeedsPerson):
    """The ledger knows this pipeline's stream, and the checkpoint is gone or is another one."""


class CheckpointDamaged(NeedsPerson):
    """Parts of the checkpoint that Spark needs are missing or unreadable."""


class LedgerBehind(NeedsPerson):
    """The checkpoint is ahead of the ledger: PostgreSQL went back in time."""


class LedgerAhead(NeedsPerson):
    """The ledger is ahead of the checkpoint: the checkpoint went back in time."""


class InputsChanged(NeedsPerson):
    """A batch id has come with other inputs than before, or an input has changed after it was listed."""


class InputsUnreadable(NeedsPerson):
    """A file that can't be read to its end, or as declared; nothing of its batch was delivered."""

    def __init__(self, seen: str, *, remedy: str, stops: Sequence[str]) -> None:
        super().__init__(seen, remedy=remedy)
        self.stops = tuple(stops)  # a sentence for each file, with the reason


class RowsSwept(NeedsPerson):
    """A consumer is to take back rows whose objects are gone from the lake; its place was not moved."""


class FewerRows(NeedsPerson):
    """A replay would deliver fewer rows than it replaces, by more than is declared; nothing was changed."""


class OffsetsGone(NeedsPerson):
    """Kafka no longer has the next records: they aged out before they were read, or their topic was recreated."""


class RecordsMissing(NeedsPerson):
    """Kafka did not give what Spark had planned to read; nothing of the batch was delivered."""


class CommitTooLong(NeedsPerson):
    """PostgreSQL ended a statement of the commit: it took too long, or somebody cancelled it."""


class StateChanged(NeedsPerson):
    """The transform keeps other state than its checkpoint holds."""

    @classmethod
    def of(cls, pipeline: str, seen: str) -> Self:
        return cls(
            seen,
            remedy="restore the old transform, or rebuild the state from all that was delivered:"
            f" `sluice recover {pipeline}`",
        )


class FilesUnread(NeedsPerson):
    """Spark has skipped files that had landed before the run began; the other files are delivered."""


class VerdictUnknown(NeedsPerson):
    """The suite could not be evaluated: that is no verdict, so nothing was delivered."""


class TransformFailed(NeedsPerson):
    """The transform fails on a record, and would at each try; nothing of its batch was delivered."""


class TaskTooLong(NeedsPerson):
    """One of Spark's tasks took longer than SLUICE_TASK_LIMIT, as it would again; nothing of its batch was delivered."""


class SparkEnded(SluiceError):
    """Spark's JVM, or a Python worker of its, ended at its work, of which nothing was delivered (exit 70)."""


class BatchEndsSpark(NeedsPerson):
    """Spark, or the whole run, has ended at each of several tries of one batch, as it would again; nothing was delivered."""


class Busy(SluiceError):
    """Another run holds the pipeline, or another command the database; nothing was changed (exit 75)."""

    exit_code = 75


class TooManyReleases(SluiceError):
    """A pipeline has had as many releases within an hour as it may; nothing was changed (exit 75)."""

    exit_code = 75

    @classmethod
    def since(cls, pipeline: str, most: int, first: datetime) -> Self:
        """Make the error of one more release than `most`, of which the first began less than an hour ago."""
        began, over = (one.astimezone(UTC) for one in (first, first + timedelta(hours=1)))
        return cls(
            f"{pipeline}: {pluralize(most, 'release')} of held rows since {began:%H:%M:%S} UTC, as many as an hour may"
            " have (SLUICE_RELEASES_PER_HOUR). Nothing was changed",
            remedy=f"try again after {over:%H:%M:%S} UTC, with more rows at once, such as all that a delivery holds",
        )


class ServiceAway(SluiceError):
    """A service did not answer; nothing of this batch was delivered (exit 75)."""

    exit_code = 75


class Fenced(SluiceError):
    """Another run took the pipeline's lease while this one was at work: it did not commit (exit 75)."""

    exit_code = 75

    @classmethod
    def of_correction(cls, pipeline: str, delivery_id: int) -> Self:
        """Make the error of a replay or release, which neither takes the stream's lease nor loses by it."""
        return cls(
            f"Delivery {delivery_id} of {pipeline} was not committed: its run was given up, or PostgreSQL went back"
            " in time",
            remedy="run the same command again",
        )

    @classmethod
    def of_number(cls, pipeline: str, delivery_id: int, *, retry: str) -> Self:
        """Make the error of a delivery whose number a restored PostgreSQL has given to another one meanwhile."""
        return cls(
            f"Delivery {delivery_id} of {pipeline} was not committed: the ledger has another delivery of this number, since"
            " PostgreSQL went back in time while this one was under way",
            remedy=f"{retry}, which takes another number, and names what PostgreSQL has lost",
        )

    @classmethod
    def of(cls, pipeline: str) -> Self:
        return cls(
            f"Another run took the lease of {pipeline}",
            remedy=f"let that run end, then `sluice run {pipeline}`",
        )


class PlaceMoved(SluiceError):
    """Another run of a consumer has moved its place meanwhile; what this one made must not be kept (exit 75)."""

    exit_code = 75


class CommitUnknown(SluiceError):
    """The connection broke during COMMIT and the ledger could not be read since (exit 75)."""

    exit_code = 75


class StagingLost(SluiceError):
    """The staged rows are fewer than the tasks reported; rolled back, to be staged again (exit 70)."""


class Stopped(BaseException):
    """A signal, or somebody by `sluice stop`, asked this command to end; `left` says what becomes of what it was at."""

    LEFT = "the next run goes on from the ledger"
    NOTHING_CHANGED = "nothing was changed; the same command starts again"

    def __init__(self, number: int, *, left: str = LEFT, again: str | None = None) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
        self.left = left
        self.again = again  # the command that is to be given again; None: it is a run's

    @classmethod
    def asked(cls, by: str, *, left: str, again: str | None = None) -> Self:
        """Make that of a command which somebody has asked by `sluice stop`, and which is to be run again (exit 75)."""
        made = cls(signal.SIGTERM, left=left, again=again)
        made.args, made.exit_code = (by,), Busy.exit_code
        return made

    @classmethod
    def behind(cls, error: BaseException) -> Stopped | None:
        """Return the Stopped that `error` is, or hides in its context; None if there is none.

        A JVM that died of the same signal fails whatever asks it, and that error hides the signal.
        """
        seen: BaseException | None = error
        while seen is not None and not isinstance(seen, cls):
            seen = seen.__context__
        return seen


def raise_first(error: BaseException | None, ended: Iterable[Future[Any]]) -> None:
    """Raise the first error of work that has ended, if there is one; it tells of the others in notes.

    An `error` that is under way comes before all of them, and is not raised here.
    """
    errors = [error, *(one.exception() for one in ended if not one.cancelled())]
    failed = [one for number, one in enumerate(errors) if one is not None and one not in errors[:number]]
    if not failed:
        return
    first, *others = failed
    for other in others:
        first.add_note(f"Beside it: {type(other).__name__}: {other}")
    if first is not error:
        raise first
