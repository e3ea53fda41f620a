"""The state of a transform made anew, when its checkpoint is lost or is of another transform.

Every batch that is in force runs once more, in the order of the commits and with exactly its own files, or its own
offsets, on a new checkpoint. Nothing of it is delivered: what it leaves in the checkpoint is what the next batch goes
on from.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from etl.common.database import Cursor, transaction
from etl.common.errors import Fenced, InputsChanged
from etl.ledger import deliveries, leases, offsets, pipelines, streams
from etl.ledger.inputs import Input
from etl.ledger.leases import Lease
from etl.ledger.offsets import Range
from etl.ledger.streams import StreamState
from etl.pipeline import Pipeline
from etl.runs.preflight import by_source
from etl.runs.recovery.topic_seeds import AcceptedGaps, Seeded, where_to_begin
from etl.runs.spark_session import a_session
from etl.runs.stateful import kept, output_mode
from etl.sources import evidence
from etl.sources.kafka.cluster import Topic, still_there
from etl.spark.checkpoint.format import About
from etl.spark.checkpoint.reader import Checkpoint
from etl.spark.checkpoint.topics import TopicCheckpoint
from etl.spark.jvm import java_class
from etl.spark.session import SHUFFLES
from etl.spark.state_plan import taken
from etl.spark.watermark import set_watermark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from etl.runs.query import BatchFailure
    from etl.runs.workspace import Workspace
    from etl.sources.kafka.source import KafkaSource

Told = Callable[[int, int], None]  # batches that ran, of how many
SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class RecordedBatch:
    """What a planned batch is made of."""

    watermark_ms: int | None  # that it began with; None: it was made without state
    time_ms: int  # its own time, since 1970
    files: Sequence[Input] = ()
    ranges: Sequence[Range] = ()


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A query of batches whose files, or offsets, are told to it: Spark looks for none."""

    pipeline: Pipeline
    spark: SparkSession
    writer: DataStreamWriter
    times: int  # so often the transform takes its input
    pinned: Mapping[str, Any]

    @classmethod
    def of(cls, pipeline: Pipeline, frame: DataFrame, writer: DataStreamWriter) -> Planned:
        """Prepare the query that runs planned batches of a pipeline.

        `frame` is the pipeline's output over its topics or an empty folder, `writer` what becomes of it.
        """
        spark = frame.sparkSession
        times = len(taken(frame)) // len(pipeline.sources)
        return cls(pipeline=pipeline, spark=spark, writer=writer, times=times, pinned=_pinned(spark))

    def run(
        self,
        checkpoint: Checkpoint,
        number: int,
        past: RecordedBatch,
        failure: BatchFailure | None = None,
        *,
        alone: bool = True,
    ) -> None:
        """Run one batch to its mark in the checkpoint, which has to be as the batch before left it.

        It runs `alone`, or with what it brings about.
        """
        from etl.runs.query import to_its_end

        left = checkpoint.watermark_after(number - 1)
        watermark = left if past.watermark_ms is None else past.watermark_ms
        about = About(watermark_ms=watermark, time_ms=past.time_ms, pinned=self.pinned)
        try:
            set_watermark(self.spark, checkpoint.watermark_of(number - 1))
            checkpoint.plan(number, past, times=self.times, about=about)
            writer = self.writer.option("checkpointLocation", checkpoint.uri)
            again = f"`sluice recover {self.pipeline.name}`" if self.pipeline.topics else None
            to_its_end(writer, self.pipeline.name, failure, kafka=again, once=alone)
        finally:
            set_watermark(self.spark, None)


def rebuilt_stream(
    workspace: Workspace, pipeline: Pipeline, lease: Lease, told: Told, spark: SparkSession | None = None
) -> tuple[str, int] | None:
    """Begin a new current stream whose checkpoint holds the state after all that is in force.

    Returns its id and how many files went into it, or None if the transform keeps no state. Raises
    InputsChanged, with nothing changed, when a file that is needed is gone or is another.
    """
    from etl.sources.open import open_source

    with a_session(workspace, spark) as found, tempfile.TemporaryDirectory(prefix="sluice-") as empty:
        source = open_source(found, pipeline, workspace.settings, models=workspace.models, stream=False)
        frame = source.below(empty)
        state = kept(pipeline, frame)
        if not state:
            return None
        with transaction(workspace.services.postgres) as cursor:
            batches = _in_force(cursor, pipeline)
        _refuse_changed(workspace, pipeline, batches.values())
        declared = [
            replace(past, files=by_source(past.files, pipeline, workspace.settings.landing))
            for past in batches.values()
        ]
        stream_id = _run_again(workspace, pipeline, frame, state, declared, told)
    with transaction(workspace.services.postgres) as cursor:
        _make_current(cursor, workspace, pipeline, lease, stream_id, batches, len(declared), state)
    return stream_id, sum(len(past.files) for past in batches.values())


def rebuilt_topics(
    workspace: Workspace,
    pipeline: Pipeline,
    lease: Lease,
    told: Told,
    source: KafkaSource,
    accepted: AcceptedGaps | None,
    before: StreamState,
) -> Seeded | None:
    """Begin a new current stream over topics whose checkpoint holds the state after all that is in force.

    Returns None if the transform keeps no state. Raises InputsChanged when Kafka no longer has all that was
    read, and OffsetsGone when it has not all that comes next and this is not `accepted`.
    """
    frame = source.streamed
    state = kept(pipeline, frame)
    if not state:
        return None
    checkpoints = workspace.checkpoints(pipeline)
    with transaction(workspace.services.postgres) as cursor:
        batches = _in_force(cursor, pipeline)
    now = source.now()
    _refuse_gone(source, now, batches.values())
    if accepted is None:  # told before the work, and not after it
        with transaction(workspace.services.postgres) as cursor:
            where_to_begin(cursor, checkpoints, source, now, accepted, before)
    declared = [one for past in batches.values() for one in _plannable(source, past)]
    stream_id = _run_again(workspace, pipeline, frame, state, declared, told)
    now = source.now()  # a topic that was made anew meanwhile may have been read under its old offsets
    _refuse_gone(source, now, batches.values())
    checkpoint = checkpoints.of(stream_id)
    assert isinstance(checkpoint, TopicCheckpoint)
    with transaction(workspace.services.postgres) as cursor:
        _make_current(cursor, workspace, pipeline, lease, stream_id, batches, len(declared), state)
        seeds, gone = where_to_begin(cursor, checkpoints, source, now, accepted, before)
        checkpoint.begin_at(len(declared), seeds)
    return Seeded.of(stream_id, seeds, gone)


def _plannable(source: KafkaSource, past: RecordedBatch) -> list[RecordedBatch]:
    """Split a batch into batches that Spark can plan, each with at most one range of a partition.

    A replay may have several ranges of one.
    """
    ranges = [replace(one, source=source.number_of[one.topic]) for one in past.ranges]
    turns = offsets.one_range_per_partition(ranges, where=lambda one: one.where)
    return [replace(past, ranges=some) for some in turns or [[]]]


def _run_again(
    workspace: Workspace,
    pipeline: Pipeline,
    frame: DataFrame,
    state: Sequence[str],
    batches: Sequence[RecordedBatch],
    told: Told,
) -> str:
    """Run the batches again as the first ones of a new stream's checkpoint; return the stream's id.

    The stream is made known first, because a folder that the ledger does not know would look like a lost ledger.
    It is not current until all of them ran.
    """
    checkpoints, stream_id = workspace.checkpoints(pipeline), str(uuid.uuid4())
    checkpoint, first = checkpoints.of(stream_id), len(batches)
    with transaction(workspace.services.postgres) as cursor:
        streams.know_stream(
            cursor, pipeline.name, stream_id, checkpoint=checkpoint.uri, first_batch=first, state=state
        )
    checkpoint.create(stream_id)
    nowhere = frame.writeStream.format("noop").outputMode(output_mode(pipeline, state))
    planned = Planned.of(pipeline, frame, nowhere)
    for number, past in enumerate(batches):
        planned.run(checkpoints.of(stream_id), number, past)
        told(number + 1, len(batches))
    return stream_id


def _make_current(
    cursor: Cursor,
    workspace: Workspace,
    pipeline: Pipeline,
    lease: Lease,
    stream_id: str,
    batches: Mapping[int, RecordedBatch],
    first: int,
    state: Sequence[str],
) -> None:
    """Make the new stream the current one; it goes on with its batch `first`.

    Raises Fenced, with nothing changed, if another run came between.

    Making the state anew took a while: the lease has to be ours still, and these batches those in force.
    """
    pipelines.lock(cursor, pipeline.name)
    now = [number for number, *_ in deliveries.batches_in_force(cursor, pipeline.name)]
    if not (leases.heartbeat(cursor, lease) and list(batches) == now):
        raise Fenced(
            f"Another run delivered into {lease.pipeline} while its state was made anew; nothing was changed",
            remedy=f"`sluice recover {lease.pipeline}` again",
        )
    uri = workspace.checkpoints(pipeline).of(stream_id).uri
    streams.register_stream(cursor, pipeline.name, stream_id, checkpoint=uri, first_batch=first, state=state)


def _in_force(cursor: Cursor, pipeline: Pipeline) -> dict[int, RecordedBatch]:
    """Return the batches in force by the number of their delivery, in the order of the commits."""
    return {
        number: RecordedBatch(
            watermark_ms=mark,
            time_ms=time,
            files=deliveries.inputs_of(cursor, number),
            ranges=offsets.ranges_of(cursor, [number]) if pipeline.topics else (),
        )
        for number, mark, time in deliveries.batches_in_force(cursor, pipeline.name)
    }


def _refuse_changed(workspace: Workspace, pipeline: Pipeline, batches: Iterable[RecordedBatch]) -> None:
    landing = workspace.settings.landing
    recorded = list(chain.from_iterable(past.files for past in batches))
    found = evidence.look_again(recorded, landing=landing)
    changes = evidence.changed(recorded, found)
    read = {one.uri for one in by_source(recorded, pipeline, landing)}
    changes += [f"{one.uri} is of no source any more" for one in recorded if one.uri not in read]
    if changes:
        raise InputsChanged(
            f"The state of {pipeline.name} can't be made anew: of the {len(recorded):,} files that it was made of,"
            f" {len(changes):,} are not as they were: {'; '.join(changes[:SHOWN])}",
            remedy=f"put them back as they were, then `sluice recover {pipeline.name}` again",
        )


def _refuse_gone(source: KafkaSource, now: Mapping[str, Topic], batches: Iterable[RecordedBatch]) -> None:
    name, read = source.pipeline.name, list(chain.from_iterable(past.ranges for past in batches))
    _, lacking = still_there(now, read)
    lacking += [f"{one} is compacted, and what compaction took is not told" for one in source.compacted()]
    if lacking:
        raise InputsChanged(
            f"The state of {name} can't be made anew: it was made of {len(read):,} ranges of offsets, and not all of that"
            f" is there: {'; '.join(lacking[:SHOWN])}",
            remedy="if the checkpoint was lost, restore it from a backup; if the transform or the declared topics"
            " changed, put them back as they were; or declare a new pipeline, which reads its topics from their first"
            " record",
        )


def _pinned(spark: SparkSession) -> dict[str, Any]:
    """Return the settings that Spark keeps to in a new checkpoint: the state's format depends on them."""
    metadata = java_class(spark, "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata")
    found: dict[str, Any] = json.loads(metadata.apply(0, 0, spark._jsparkSession.conf()).json())["conf"]
    return {**found, SHUFFLES: spark.conf.get(SHUFFLES)}
