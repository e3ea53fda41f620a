"""Rebuilds the state of a transform when its checkpoint is lost or belongs to another transform.

Every batch that is in force runs once more, in the order of the commits and with exactly its own files, or its own
offsets, on a new checkpoint. Nothing of it is delivered: what it leaves in the checkpoint is what the next batch goes
on from.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from etl.common.database import Cursor, transaction
from etl.common.errors import Fenced
from etl.delivery.transform_failed import fault_of, transform_failed
from etl.ledger import deliveries, offsets, pipelines, streams
from etl.pipeline import Pipeline
from etl.runs.recovery.base import Rebuilt, RecordedBatch, RecoveryRequest, Seeded, StateRecovery
from etl.runs.stateful import output_mode
from etl.sources.kinds.declared import kind_of
from etl.spark.checkpoint.folder import Checkpoints
from etl.spark.checkpoint.format import About
from etl.spark.checkpoint.reader import PlannableCheckpoint
from etl.spark.jvm import java_class
from etl.spark.session import SHUFFLES
from etl.spark.state_plan import source_numbers
from etl.spark.watermark import set_watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from etl.runs.query import BatchFailure


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A query of batches whose files, or offsets, are told to it: Spark looks for none."""

    pipeline: Pipeline
    spark: SparkSession
    writer: DataStreamWriter
    command: str  # that asks for the batches, as a remedy names it
    times: int  # so often the transform takes its input
    pinned: Mapping[str, Any]

    @classmethod
    def of(cls, pipeline: Pipeline, frame: DataFrame, writer: DataStreamWriter, command: str) -> Planned:
        """Prepare the query that runs planned batches of a pipeline.

        `frame` is the pipeline's output over its topics or an empty folder, `writer` what becomes of it.
        """
        spark = frame.sparkSession
        times = len(source_numbers(frame)) // len(pipeline.sources)
        return cls(
            pipeline=pipeline,
            spark=spark,
            writer=writer,
            command=command,
            times=times,
            pinned=_pinned(spark),
        )

    def run(
        self,
        checkpoint: PlannableCheckpoint,
        number: int,
        past: RecordedBatch,
        failure: BatchFailure | None = None,
        *,
        once: bool = True,
    ) -> None:
        """Run one batch to its mark in the checkpoint, which has to be as the batch before left it.

        It runs `once`, or with what it brings about.
        """
        from etl.runs.query import run_query

        name = self.pipeline.name
        left_by_last = checkpoint.watermark_after(number - 1)
        watermark = left_by_last if past.watermark_ms is None else past.watermark_ms
        about = About(watermark_ms=watermark, time_ms=past.time_ms, pinned=self.pinned)
        try:
            set_watermark(self.spark, checkpoint.watermark_of(number - 1))
            checkpoint.plan(number, past, times=self.times, about=about)
            writer = self.writer.option("checkpointLocation", checkpoint.uri)
            told = partial(self._raise_told, files=[one.uri for one in past.files])
            run_query(writer, name, failure, raise_read_error=told, once=once)
        finally:
            set_watermark(self.spark, None)

    def _raise_told(self, errors: Sequence[BaseException], files: Sequence[str]) -> None:
        """Raise what one of `errors` tells of the sources, or TransformFailed where it tells of the transform."""
        kind_of(self.pipeline).raise_read_error(errors, self.command)
        for error in errors:
            if fault := fault_of(error, self.pipeline):
                raise transform_failed(self.pipeline, fault, files=files, of=len(files)) from error


def rebuild_all(recovery: StateRecovery, dsn: str, pipeline: Pipeline) -> Seeded | None:
    """Begin a new current stream whose checkpoint holds the state after all that is in force; None if there is no state."""
    with transaction(dsn) as cursor:
        batches = in_force(cursor, pipeline)
    rebuilt = recovery.rebuild(batches)
    if rebuilt is None:
        return None
    with transaction(dsn) as cursor:
        return recovery.go_on(cursor, rebuilt)


def rerun_batches(
    dsn: str,
    checkpoints: Checkpoints[PlannableCheckpoint],
    pipeline: Pipeline,
    frame: DataFrame,
    state: Sequence[str],
    batches: Sequence[RecordedBatch],
    request: RecoveryRequest,
    create: Callable[[str], None] | None = None,
) -> str:
    """Run the batches again as the first ones of a new stream's checkpoint; return the stream's id.

    The stream is made known first, because a folder that the ledger does not know would look like a lost ledger.
    It is not current until all of them ran. `create` makes its checkpoint, by its id, otherwise than as an empty one.
    """
    stream_id, first = str(uuid.uuid4()), len(batches)
    checkpoint = checkpoints.of(stream_id)
    with transaction(dsn) as cursor:
        streams.know_stream(
            cursor, pipeline.name, stream_id, checkpoint=checkpoint.uri, first_batch=first, state=state
        )
    (create or checkpoint.create)(stream_id)
    nowhere = frame.writeStream.format("noop").outputMode(output_mode(pipeline, state))
    planned = Planned.of(pipeline, frame, nowhere, request.command)
    for number, past in enumerate(batches):
        planned.run(checkpoints.of(stream_id), number, past)
        request.on_progress(number + 1, len(batches))
    return stream_id


def make_current(cursor: Cursor, request: RecoveryRequest, rebuilt: Rebuilt) -> None:
    """Make the rebuilt stream the current one.

    Raises Fenced, with nothing changed, if another run delivered while the state was rebuilt; `register_stream` looks
    whether the lease is still ours. HAZARD: no heartbeat is made here, for the transaction may be a long commit, and the
    heartbeats beside it would wait for its lock.
    """
    lease = request.lease
    pipelines.lock(cursor, lease.pipeline)
    now = [number for number, *_ in deliveries.batches_in_force(cursor, lease.pipeline)]
    if list(rebuilt.batches) != now:
        raise Fenced(
            f"Another run delivered into {lease.pipeline} while its state was rebuilt; nothing was changed",
            remedy=f"{request.command} again",
        )
    streams.register_stream(
        cursor,
        lease.pipeline,
        lease.run_id,
        rebuilt.stream_id,
        checkpoint=rebuilt.checkpoint,
        first_batch=rebuilt.first,
        state=rebuilt.state,
    )


def in_force(cursor: Cursor, pipeline: Pipeline) -> dict[int, RecordedBatch]:
    """Return the batches in force by the number of their delivery, in the order of the commits."""
    return {
        number: RecordedBatch(
            watermark_ms=mark,
            time_ms=time,
            files=deliveries.inputs_of(cursor, number),
            ranges=offsets.ranges_of(cursor, [number]),
        )
        for number, mark, time in deliveries.batches_in_force(cursor, pipeline.name)
    }


def _pinned(spark: SparkSession) -> dict[str, Any]:
    """Return the settings that Spark keeps to in a new checkpoint: the state's format depends on them."""
    metadata = java_class(spark, "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata")
    settings: dict[str, Any] = json.loads(metadata.apply(0, 0, spark._jsparkSession.conf()).json())["conf"]
    return {**settings, SHUFFLES: spark.conf.get(SHUFFLES)}
