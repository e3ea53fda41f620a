"""Sources that can't be read again, rate and socket: what a run of them promises, and the stream that it begins.

Within a run each batch is in both sinks or in neither, and in none twice. No further: what the source gave and was
not delivered when a run dies is gone, or comes twice where it is sent again, for no input of it is on record. So
every run begins a stream of its own: what a checkpoint says of such a source means nothing to the next connection.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etl.common.database import Cursor, transaction
from etl.common.errors import LedgerBehind, SluiceError
from etl.ledger import streams
from etl.ledger.leases import Lease
from etl.ledger.streams import StreamState
from etl.pipeline.replayability import promise
from etl.runs.kinds.base import PipelineStream
from etl.runs.preflight import know_streams, unknown_streams
from etl.runs.recovery.base import Recovery, RecoveryRequest, Seeded
from etl.spark.checkpoint.reader import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("sluice")


@dataclass(frozen=True, kw_only=True)
class LiveStream(PipelineStream[Checkpoint]):
    """The streams of a pipeline of a source that can't be read again, one a run."""

    def begin(self, lease: Lease) -> str:
        """Begin a new stream for a run, the current one from now on, and return its id; warn of what that means.

        Raises LedgerBehind, having changed nothing, where PostgreSQL went back in time.
        """
        if problem := self._went_back():
            raise problem
        stream_id = self.new_stream(lease)
        log.warning("%s. This run begins stream %s", promise(self.pipeline), stream_id)
        return stream_id

    def new_stream(self, lease: Lease) -> str:
        """Register a new stream as the current one, create its checkpoint and return its id.

        Unlike `begin`, it does not look whether PostgreSQL went back in time: streams that the ledger has
        lost are made known again, as earlier ones.
        """
        stream_id = str(uuid.uuid4())
        know_streams(self.dsn, self.checkpoints)
        checkpoint = self.checkpoints.of(stream_id)
        with transaction(self.dsn) as cursor:
            streams.register_stream(
                cursor, lease.pipeline, lease.run_id, stream_id, checkpoint=checkpoint.uri, first_batch=0
            )
        checkpoint.create(stream_id)
        return stream_id

    def _went_back(self) -> LedgerBehind | None:
        """Return LedgerBehind where PostgreSQL went back in time, else None.

        The lake may then have deliveries that PostgreSQL has lost.
        """
        if problem := unknown_streams(self.dsn, self.checkpoints):
            return problem
        with transaction(self.dsn) as cursor:
            known = streams.current_stream(cursor, self.pipeline.name)
        if known and (ahead := _ahead(known, self.checkpoints.of(known.stream_id))):
            remedy = f"`sluice recover {self.pipeline.name}`, which puts back what the lake still has"
            return LedgerBehind(ahead, remedy=remedy)
        return None

    def _mismatch(self, cursor: Cursor) -> SluiceError | None:  # noqa: ARG002
        return self._went_back()

    def _problem(self, lease: Lease) -> str | None:  # noqa: ARG002
        error = self._went_back()
        return error.seen if error else None

    @contextmanager
    def recovery(self, request: RecoveryRequest, spark: SparkSession | None) -> Iterator[Recovery]:  # noqa: ARG002
        yield LiveRecovery(stream=self, request=request)


@dataclass(frozen=True, kw_only=True)
class LiveRecovery(Recovery):
    """A recovery of what can't be read again: there is nothing to go on with, so the next stream is a new one."""

    stream: LiveStream
    request: RecoveryRequest

    def problem(self) -> str | None:
        return self.stream.problem(self.request.lease)

    def next_stream(self) -> Seeded:
        return Seeded(stream_id=self.stream.new_stream(self.request.lease))


def _ahead(known: StreamState, checkpoint: Checkpoint) -> str | None:
    done = max(checkpoint.commits, default=-1)
    if done < known.next_batch:
        return None
    return (
        f"Checkpoint {checkpoint.uri} of {known.pipeline} has finished batch {done}; the ledger's next is"
        f" {known.next_batch}: PostgreSQL went back in time"
    )
