"""The contract of a kind of stream: what every kind answers, and what the kinds share that can be read again."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Generic, TypeVar

from etl.common.database import Cursor, transaction
from etl.common.errors import FilesUnread, SluiceError
from etl.common.wording import pluralize
from etl.ledger import deliveries, leases, streams
from etl.ledger.deliveries import Commit
from etl.ledger.diagnosis import MAY_HAVE_ANOTHER_CHECKPOINT, NEED_ANOTHER_CHECKPOINT
from etl.ledger.leases import Lease
from etl.ledger.streams import StreamState
from etl.pipeline import Pipeline
from etl.runs.preflight import refuse_unknown, unfit, unknown_streams
from etl.runs.recovery.base import ReadAgain, RecordedBatch, Recovery, RecoveryRequest, StateRecovery
from etl.runs.workspace import Workspace
from etl.sinks.lake import marker
from etl.sources.kinds.base import SourceKind
from etl.spark.checkpoint.folder import Checkpoints
from etl.spark.checkpoint.reader import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.sources.base import Source

Kind = TypeVar("Kind", bound=Checkpoint)


@dataclass(frozen=True, kw_only=True)
class PipelineStream(ABC, Generic[Kind]):
    """How the stream of a pipeline goes on from run to run, by the kind of the pipeline's sources."""

    workspace: Workspace
    kind: SourceKind[Source, Kind]

    @property
    def pipeline(self) -> Pipeline:
        return self.kind.pipeline

    @cached_property
    def checkpoints(self) -> Checkpoints[Kind]:
        return self.workspace.checkpoints_of(self.kind)

    @property
    def dsn(self) -> str:
        return self.workspace.services.postgres

    @property
    def landing(self) -> str:
        return self.workspace.settings.landing

    @abstractmethod
    def begin(self, lease: Lease) -> str:
        """Return the id of the stream that a run works on; raise where checkpoint and ledger do not fit together."""

    def state(self, stream_id: str) -> StreamState:
        """Return a stream of the pipeline, which has begun, as the ledger has it."""
        with transaction(self.dsn) as cursor:
            known = streams.stream_state(cursor, stream_id)
        assert known is not None
        return known

    def awaited(self, stream_id: str) -> AbstractSet[str]:  # noqa: ARG002
        """Return the paths of what has landed and the stream is to read; none where Spark alone knows what there is."""
        return frozenset()

    def look_into_closed(self, stream_id: str) -> None:
        """List closed folders in this run as well."""

    def nothing_new(self, stream: StreamState, awaited: AbstractSet[str]) -> bool:  # noqa: ARG002
        """Tell whether no batch is unfinished or owed and nothing is to be read, so that Spark need not be started."""
        return False

    def is_little(self, stream_id: str, awaited: AbstractSet[str]) -> bool:  # noqa: ARG002
        """Tell whether all that is to be read is known, and so little that a run of it is over in seconds."""
        return False

    def unread(self, stream_id: str, awaited: AbstractSet[str]) -> FilesUnread | None:  # noqa: ARG002
        """Return an error that names what was `awaited` and is still there, and that no batch has read; None: nothing."""
        return None

    def remember(self, stream_id: str) -> None:
        """Keep for the next run what this one has compared, which has found nothing to read."""

    def remember_delivered(self, stream_id: str, awaited: AbstractSet[str], batches: int) -> None:
        """Keep it of a run that has read all that was `awaited`, and committed so many batches."""

    def mismatch(self, cursor: Cursor) -> SluiceError | None:
        """Return the error that keeps the stream from going on, or None when checkpoint and ledger fit together.

        `cursor` reads the ledger, in whatever transaction.
        """
        lost = marker.went_back(self.dsn, self.workspace.lake, self.pipeline)
        return lost or self._mismatch(cursor)

    @abstractmethod
    def _mismatch(self, cursor: Cursor) -> SluiceError | None: ...

    def problem(self, lease: Lease) -> str | None:
        """Say why the stream needs a recovery; None: it needs none."""
        if lost := marker.went_back(self.dsn, self.workspace.lake, self.pipeline):
            return lost.seen
        return self._problem(lease)

    @abstractmethod
    def _problem(self, lease: Lease) -> str | None: ...

    @abstractmethod
    def recovery(
        self, request: RecoveryRequest, spark: SparkSession | None
    ) -> AbstractContextManager[Recovery]:
        """Open a recovery of the stream; Spark is started where it is needed and None is given."""

    @property
    def way_back(self) -> str:
        """Return what a person does so that the rows of a delivery that only the lake has can be had again."""
        return "bring the objects that are gone back from another version of the bucket"

    def counted(self, seen: int) -> str:
        """Say what the new checkpoint of a recovery knows, which is `seen` inputs."""
        return pluralize(seen, "input")


@dataclass(frozen=True, kw_only=True)
class ContinuedStream(PipelineStream[Kind]):
    """A stream that goes on where the run before it ended: what was read can be read again."""

    def begin(self, lease: Lease) -> str:
        """Return the id of the stream that the run goes on with; a pipeline that never ran is given one.

        Raises CheckpointLost, CheckpointDamaged, LedgerBehind or LedgerAhead, having changed nothing.
        """
        if problem := unknown_streams(self.dsn, self.checkpoints):
            raise problem
        with transaction(self.dsn) as cursor:
            known = streams.current_stream(cursor, self.pipeline.name)
            commit = deliveries.last_commit(cursor, self.pipeline.name)
        if known is None:
            refuse_unknown(self.checkpoints)
            return self._first(lease)
        checkpoint = self.checkpoints.of(known.stream_id)
        if _is_unbegun(known, checkpoint):  # a run was killed between registering its stream and this
            self._creator()(known.stream_id)
            return known.stream_id
        as_compared = self._is_as_compared(known, checkpoint, commit)
        if not as_compared and (misfit := self._misfit(known, checkpoint)):
            raise misfit
        return known.stream_id

    def _is_as_compared(self, known: StreamState, checkpoint: Kind, commit: Commit | None) -> bool:  # noqa: ARG002
        """Tell whether a run before has found that the checkpoint fits the ledger, and nothing of both has changed since.

        `commit` is that of the pipeline's newest delivery.
        """
        return False

    def _first(self, lease: Lease) -> str:
        """Register a pipeline's first stream, then make its checkpoint folder; return its id.

        It is registered first, because a folder that the ledger does not know would look like a lost ledger.
        """
        stream_id, create = str(uuid.uuid4()), self._creator()
        uri = self.checkpoints.of(stream_id).uri
        with transaction(self.dsn) as cursor:
            streams.register_stream(
                cursor, lease.pipeline, lease.run_id, stream_id, checkpoint=uri, first_batch=0
            )
        create(stream_id)
        return stream_id

    def _creator(self) -> Callable[[str], None]:
        """Return what makes the checkpoint of a first stream, by its id."""
        return lambda stream_id: self.checkpoints.of(stream_id).create(stream_id)

    def _misfit(self, known: StreamState, checkpoint: Kind) -> SluiceError | None:
        """Return the error that keeps the stream from going on with this checkpoint; None where it fits the ledger."""
        if problem := unfit(self.dsn, known, checkpoint):
            return problem
        delivered = known.next_batch - 1
        return self._read_otherwise(known, checkpoint, delivered) if delivered in checkpoint.offsets else None

    @abstractmethod
    def read_again(
        self, leaving: Sequence[RecordedBatch], before: Sequence[RecordedBatch], spark: SparkSession | None
    ) -> ReadAgain:
        """Look for the inputs of batches that are to be read again, and of those before, which the state was computed from.

        Spark is started where it is needed and None is given.
        """

    @abstractmethod
    def recovery(
        self, request: RecoveryRequest, spark: SparkSession | None
    ) -> AbstractContextManager[StateRecovery]: ...

    @abstractmethod
    def _read_otherwise(self, known: StreamState, checkpoint: Kind, delivered: int) -> SluiceError | None:
        """Return an error where the checkpoint of batch `delivered` has read other than what was delivered; else None.

        The difference would be lost, or come twice, without a word.
        """

    def _mismatch(self, cursor: Cursor) -> SluiceError | None:
        known = streams.current_stream(cursor, self.pipeline.name)
        if known is None:
            return None
        checkpoint = self.checkpoints.of(known.stream_id)
        return None if _is_unbegun(known, checkpoint) else self._misfit(known, checkpoint)

    def _problem(self, lease: Lease) -> str | None:
        with transaction(self.dsn) as cursor:
            known = streams.current_stream(cursor, self.pipeline.name)
            outcomes = leases.pending_outcomes(cursor, lease)
            pending = outcomes & (NEED_ANOTHER_CHECKPOINT | MAY_HAVE_ANOTHER_CHECKPOINT)
        if known is None:
            present = self.checkpoints.present()
            return f"the ledger never saw the streams {', '.join(present)} run" if present else None
        if unknown := unknown_streams(self.dsn, self.checkpoints):
            return unknown.seen
        checkpoint = self.checkpoints.of(known.stream_id)
        if _is_unbegun(known, checkpoint):
            return None
        if misfit := self._misfit(known, checkpoint):
            return misfit.seen
        return f"the last run ended with {' and '.join(sorted(pending))}" if pending else None


def _is_unbegun(known: StreamState, checkpoint: Checkpoint) -> bool:
    """Tell whether a stream was registered and has neither a checkpoint nor a delivery yet."""
    return not checkpoint.exists and known.last_batch is None and known.first_batch == 0
