"""The types of a recovery: what it is asked for, what it answers, and the stream that it makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from etl.ledger.leases import Lease
from etl.ledger.offsets import Gap

OnProgress = Callable[[int, int], None]  # batches that ran, of how many


@dataclass(frozen=True, kw_only=True)
class AcceptedGaps:
    """A person's word that what Kafka has no longer is lost."""

    who: str
    why: str


@dataclass(frozen=True, kw_only=True)
class RecoveryRequest:
    """What a recovery is asked for, by the run that has the lease."""

    lease: Lease
    on_progress: OnProgress
    accepted: AcceptedGaps | None


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """A stream that can run."""

    stream_id: str
    seen: int = 0  # inputs that its checkpoint will not read again; of topics: partitions that it knows
    gone: Sequence[Gap] = ()  # what is on record as gone now


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
