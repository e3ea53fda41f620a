"""Continues a stream over topics of Kafka, by the offsets that were delivered, partition by partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from etl.common.database import Cursor, transaction
from etl.common.errors import CheckpointDamaged, InputsChanged, NeedsPerson, SluiceError
from etl.common.wording import first_few, pluralize
from etl.ledger import offsets, pipelines, streams
from etl.ledger.offsets import Gap, Range
from etl.ledger.streams import StreamState
from etl.runs.kinds.base import ContinuedStream
from etl.runs.recovery.base import (
    ReadAgain,
    Rebuilt,
    RecordedBatch,
    RecoveryRequest,
    Seeded,
    StateRecovery,
)
from etl.runs.recovery.state_rebuild import make_current, rebuild_all, rerun_batches
from etl.runs.recovery.topic_seeds import seeded_at, seeded_topics, skip_gaps, where_to_begin
from etl.runs.spark_session import a_session
from etl.runs.stateful import kept_state
from etl.sources.kafka.cluster import Topic, still_there
from etl.sources.kafka.source import KafkaSource
from etl.sources.kinds.topics import KafkaKind
from etl.spark.checkpoint.reader import Offsets
from etl.spark.checkpoint.topics import TopicCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class TopicStream(ContinuedStream[TopicCheckpoint]):
    """The stream of a pipeline of topics: what there is on a topic is known through Spark alone."""

    kind: KafkaKind

    def _read_otherwise(
        self, known: StreamState, checkpoint: TopicCheckpoint, delivered: int
    ) -> SluiceError | None:
        """Return CheckpointDamaged where the checkpoint's offsets are not the ledger's, else None."""
        with transaction(self.dsn) as cursor:
            ledger_at = {
                (one.topic, one.partition): one.reached for one in offsets.reached(cursor, known.pipeline)
            }
        reached = [
            (topic, partition, offset)
            for topics in checkpoint.reached(delivered)
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        ]
        seeded = delivered < known.first_batch  # at the beginning of what was never read before
        wrong = [
            f"{topic}/{partition} at {offset}, the ledger at {ledger_at.get((topic, partition), 'none')}"
            for topic, partition, offset in reached
            if ledger_at.get((topic, partition), offset if seeded else None) != offset
        ]
        if not wrong:
            return None
        return CheckpointDamaged(
            f"Checkpoint {checkpoint.uri} of {known.pipeline} does not agree with what was delivered: {first_few(wrong)}",
            remedy=f"`sluice recover {known.pipeline}`",
        )

    def counted(self, seen: int) -> str:
        return f"{pluralize(seen, 'partition')}, {'' if seen == 1 else 'each '}where the ledger is"

    def read_again(
        self, leaving: Sequence[RecordedBatch], before: Sequence[RecordedBatch], spark: SparkSession | None
    ) -> ReadAgain:
        from etl.sources.open import open_kind

        with a_session(self.workspace, spark, little=True) as session:
            source = open_kind(session, self.kind, self.workspace.settings, models=self.workspace.models)
            now = source.now()
            gone, lost = (_lacking(source, now, _ranges_of(some)) for some in (leaving, before))
        return ReadAgain(gone=gone, changed=(), lost_to_state=lost)

    @contextmanager
    def recovery(self, request: RecoveryRequest, spark: SparkSession | None) -> Iterator[StateRecovery]:
        from etl.sources.open import open_kind

        with a_session(self.workspace, spark) as session:
            source = open_kind(session, self.kind, self.workspace.settings, models=self.workspace.models)
            yield TopicRecovery(stream=self, request=request, source=source)


@dataclass(frozen=True, kw_only=True)
class RebuiltOverTopics(Rebuilt):
    """A rebuilt stream whose offsets begin where the ledger is when it becomes the current one."""

    now: Mapping[str, Topic]  # what Kafka had once its state was there


@dataclass(frozen=True, kw_only=True)
class TopicRecovery(StateRecovery):
    """A recovery of a stream over topics, which Kafka is asked about."""

    stream: TopicStream
    request: RecoveryRequest
    source: KafkaSource

    def problem(self) -> str | None:
        return self.stream.problem(self.request.lease) or self._unreadable()

    def _unreadable(self) -> str | None:
        """Say why Spark can't go on, though checkpoint and ledger fit together; return None if it can."""
        with transaction(self.stream.dsn) as cursor:
            known = streams.current_stream(cursor, self.stream.pipeline.name)
            reached = offsets.reached(cursor, self.stream.pipeline.name)
            noted = streams.note_topics(cursor, known.stream_id, {}) if known else {}
        if known is None:
            return None
        checkpoint = self.stream.checkpoints.of(known.stream_id)
        try:
            self.source.require_next(checkpoint, known.next_batch, reached, noted)
        except NeedsPerson as error:
            return error.seen
        return None

    def next_stream(self) -> Seeded:
        """Return the stream to go on with; where it needs a new checkpoint, that begins at the ledger's offsets.

        Raises OffsetsGone when Kafka has not all that comes next and this is not accepted.
        """
        stream, source, accepted = self.stream, self.source, self.request.accepted
        with transaction(stream.dsn) as cursor:
            known = streams.current_stream(cursor, stream.pipeline.name)
        state = kept_state(stream.pipeline, source.shape()) if known else ()
        next_stream = None
        if known and (known.state or state):
            if self.problem() is None:  # what was put back was all that its checkpoint was ahead by
                return Seeded(stream_id=known.stream_id)
            if known.goes_on_as(state):
                next_stream = skip_gaps(
                    stream.dsn, self.request.lease, stream.checkpoints, source, accepted, known
                )
            next_stream = next_stream or rebuild_all(self, stream.dsn, stream.pipeline)
        return next_stream or seeded_topics(
            stream.dsn, self.request.lease, stream.checkpoints, source, accepted, known
        )

    def rebuild(self, batches: Mapping[int, RecordedBatch]) -> Rebuilt | None:
        source = self.source
        dsn, checkpoints, pipeline = self.stream.dsn, self.stream.checkpoints, self.stream.pipeline
        frame = source.streamed
        state = kept_state(pipeline, frame)
        if not state:
            return None
        now = source.now()
        _refuse_gone(source, now, batches.values())
        if self.request.accepted is None:  # told before the work, and not after it
            with transaction(dsn) as cursor:
                self._where_to_begin(cursor, now)
        declared = [one for past in batches.values() for one in _plannable(source, past)]
        stream_id = rerun_batches(dsn, checkpoints, pipeline, frame, state, declared, self.request)
        now = source.now()  # a topic that was recreated meanwhile may have been read under its old offsets
        _refuse_gone(source, now, batches.values())
        return RebuiltOverTopics(
            stream_id=stream_id,
            checkpoint=checkpoints.of(stream_id).uri,
            first=len(declared),
            state=state,
            batches=batches,
            now=now,
        )

    def go_on(self, cursor: Cursor, rebuilt: Rebuilt) -> Seeded:
        assert isinstance(rebuilt, RebuiltOverTopics)
        pipelines.lock(cursor, self.stream.pipeline.name)
        seeds, gaps = self._where_to_begin(cursor, rebuilt.now)
        make_current(cursor, self.request, rebuilt)
        self.stream.checkpoints.of(rebuilt.stream_id).begin_at(rebuilt.first, seeds)
        return seeded_at(rebuilt.stream_id, seeds, gaps)

    def _where_to_begin(
        self, cursor: Cursor, now: Mapping[str, Topic]
    ) -> tuple[list[Offsets], Sequence[Gap]]:
        """Return the offsets that follow all that was delivered, as `where_to_begin` does."""
        stream = self.stream
        last = streams.current_stream(cursor, stream.pipeline.name)
        return where_to_begin(cursor, stream.checkpoints, self.source, now, self.request.accepted, last)


def _plannable(source: KafkaSource, past: RecordedBatch) -> list[RecordedBatch]:
    """Split a batch into batches that Spark can plan, each with at most one range of a partition.

    A replay may have several ranges of one.
    """
    ranges = [replace(one, source=source.number_of[one.topic]) for one in past.ranges]
    turns = offsets.one_range_per_partition(ranges, where=lambda one: one.where)
    return [replace(past, ranges=some) for some in turns or [[]]]


def _ranges_of(batches: Iterable[RecordedBatch]) -> list[Range]:
    return list(chain.from_iterable(past.ranges for past in batches))


def _lacking(source: KafkaSource, now: Mapping[str, Topic], read: Sequence[Range]) -> list[str]:
    """Name what Kafka does not have of these ranges, or may not have."""
    _, lacking = still_there(now, read)
    return lacking + [
        f"{one} is compacted, and Kafka does not say what compaction removed" for one in source.compacted()
    ]


def _refuse_gone(source: KafkaSource, now: Mapping[str, Topic], batches: Iterable[RecordedBatch]) -> None:
    name, read = source.pipeline.name, _ranges_of(batches)
    if lacking := _lacking(source, now, read):
        raise InputsChanged(
            f"The state of {name} can't be rebuilt: it was computed from {pluralize(len(read), 'range')} of"
            " offsets, and some of that"
            f" is gone: {first_few(lacking)}",
            remedy="if the checkpoint was lost, restore it from a backup; if the transform or the declared topics"
            " changed, restore the old ones; or declare a new pipeline, which reads its topics from their first"
            " record",
        )
