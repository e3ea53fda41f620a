"""The types of a recovery: what it is asked for, what it answers, and the streams that it makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from etl.common.database import Cursor
from etl.ledger.inputs import Input
from etl.ledger.leases import Lease
from etl.ledger.offsets import Gap, Range
from etl.runs.follow import RunControl

OnProgress = Callable[[int, int], None]  # batches that ran, of how many


def heeding(control: RunControl, on_progress: OnProgress) -> OnProgress:
    """Return what tells of progress and then raises Stopped where `control` was told to stop meanwhile."""

    def told(done: int, of: int) -> None:
        on_progress(done, of)
        if done < of:  # what was run again is not thrown away where nothing but the end is left
            control.require_going_on()

    return told


@dataclass(frozen=True, kw_only=True)
class AcceptedGaps:
    """A person's word that what Kafka has no longer is lost."""

    who: str
    why: str


@dataclass(frozen=True, kw_only=True)
class RecoveryRequest:
    """What a recovery is asked for, by the run that has the lease."""

    lease: Lease
    command: str  # that asks, as a remedy names it
    on_progress: OnProgress
    accepted: AcceptedGaps | None


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """A stream that can run."""

    stream_id: str
    seen: int = 0  # inputs that its checkpoint will not read again; of topics: partitions that it knows
    gone: Sequence[Gap] = ()  # what is on record as gone now


@dataclass(frozen=True, kw_only=True)
class RecordedBatch:
    """What a batch was made of, as the ledger has it."""

    watermark_ms: int | None  # that it began with; None: it was made without state
    time_ms: int  # its own time, since 1970
    files: Sequence[Input] = ()
    ranges: Sequence[Range] = ()


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """A stream whose checkpoint holds the state after some batches; it is not the pipeline's current one yet."""

    stream_id: str
    checkpoint: str  # where it is
    first: int  # the batch that it goes on with
    state: Sequence[str]  # the operators that keep it
    batches: Mapping[int, RecordedBatch]  # by the numbers of their deliveries


@dataclass(frozen=True, kw_only=True)
class ReadAgain:
    """What of inputs that are on record is still there, one sentence for each that is not as it was."""

    gone: Sequence[str]  # of those that are to be read again: can't be
    changed: Sequence[str]  # of these: can be, and are others than were delivered
    # of those that the state before was computed from, which can't be rebuilt without them
    lost_to_state: Sequence[str]


class Recovery(ABC):
    """A recovery under way, which has opened what it needs."""

    @abstractmethod
    def problem(self) -> str | None:
        """Say what keeps the stream from going on; None: nothing does."""

    @abstractmethod
    def next_stream(self) -> Seeded:
        """Return the stream to go on with, begun anew where that is needed, or raise having changed nothing.

        What the lake still had of lost deliveries has been put back by then.
        """


class StateRecovery(Recovery):
    """A recovery over what can be read again, from which a state can be rebuilt."""

    @abstractmethod
    def rebuild(self, batches: Mapping[int, RecordedBatch]) -> Rebuilt | None:
        """Run recorded batches once more on the checkpoint of a new stream, which is not the current one yet.

        They are all that the state is to know of, by the numbers of their deliveries. Returns None if the transform keeps
        no state. Raises InputsChanged, with nothing changed, when an input is gone or is another.
        """

    @abstractmethod
    def go_on(self, cursor: Cursor, rebuilt: Rebuilt) -> Seeded:
        """Make the rebuilt stream the current one in the caller's transaction; it reads all that no batch in force has.

        Raises Fenced where its batches are not those in force.
        """
