"""Seeds a new stream over topics with a checkpoint that begins exactly at the ledger's offsets."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etl.common.database import Cursor, transaction
from etl.common.errors import CheckpointDamaged, Fenced
from etl.ledger import leases, offsets, pipelines, stops, streams
from etl.ledger.leases import Lease
from etl.ledger.offsets import Gap, Reached
from etl.ledger.streams import StreamState
from etl.runs.preflight import unfit
from etl.runs.recovery.base import AcceptedGaps, Seeded
from etl.sources.kafka.cluster import Topic, from_the_first, gaps
from etl.spark.checkpoint.folder import Checkpoints
from etl.spark.checkpoint.reader import Offsets
from etl.spark.checkpoint.topics import TopicCheckpoint

if TYPE_CHECKING:
    from etl.sources.kafka.source import KafkaSource


DECLARED_SINCE = AcceptedGaps(who="recover", why="gone before the topic was declared")


def seeded_topics(
    dsn: str,
    lease: Lease,
    checkpoints: Checkpoints[TopicCheckpoint],
    source: KafkaSource,
    accepted: AcceptedGaps | None,
    before: StreamState | None,
) -> Seeded:
    """Begin a new current stream that reads on from what was delivered; raises OffsetsGone as `where_to_begin` does.

    The ledger is read in the transaction that makes the stream current: no other stream can deliver later.
    """
    stream_id, now = str(uuid.uuid4()), source.now()
    checkpoint = checkpoints.of(stream_id)
    with transaction(dsn) as cursor:
        pipelines.lock(cursor, checkpoints.pipeline)
        seeds, gone = where_to_begin(cursor, checkpoints, source, now, accepted, before)
        streams.register_stream(
            cursor, lease.pipeline, lease.run_id, stream_id, checkpoint=checkpoint.uri, first_batch=1
        )
    checkpoint.seed_at(seeds, stream_id=stream_id)
    return seeded_at(stream_id, seeds, gone)


def skip_gaps(
    dsn: str,
    lease: Lease,
    checkpoints: Checkpoints[TopicCheckpoint],
    source: KafkaSource,
    accepted: AcceptedGaps | None,
    known: StreamState,
) -> Seeded | None:
    """Move the stream's checkpoint past what aged out before it was read; its state stays as it is.

    Raises OffsetsGone where that is not accepted, and Fenced where another run has the lease by now. What aged out of a
    topic before the stream knew of it need not be accepted, and is on record as well.

    Returns None if something else is wrong with the stream. The ledger has the gap before the checkpoint is
    moved over it, so where that was not finished, it is done again. What was decided on the batch that was
    planned is forgotten: it has other records.
    """
    checkpoint, batch = checkpoints.of(known.stream_id), known.next_batch
    if unfit(dsn, known, checkpoint) or (batch > known.first_batch and batch - 1 not in checkpoint.commits):
        return None
    try:
        starts = checkpoint.starts(batch)
        planned = checkpoint.reached(batch) if batch in checkpoint.offsets else []
    except CheckpointDamaged:
        return None
    now = source.now()
    with transaction(dsn) as cursor:
        pipelines.lock(cursor, checkpoints.pipeline)
        if not leases.heartbeat(cursor, lease):  # another run goes on with this very checkpoint
            raise Fenced.of(checkpoints.pipeline)
        positions = _known(cursor, checkpoints, source, known)
        new = now.keys() - {one.topic for one in positions}  # begin with the oldest record that is there
        begun = new & {topic for topics in planned for topic in topics}  # but for what a batch was planned of
        lost = gaps(now, [*positions, *from_the_first(now, sorted(begun))])
        declared_since = gaps(now, from_the_first(now, sorted(new - begun)))
        if starts is None or any(gap.end is None for gap in lost):
            return None
        if lost and accepted is None:
            raise source.gone(lost)
        if accepted is not None:
            _accept(cursor, checkpoints, lost, accepted)
        _accept(cursor, checkpoints, declared_since, DECLARED_SINCE)
        lost = [*lost, *declared_since]
        behind = _behind_gaps(cursor, checkpoints, source, now, starts)
        if behind == starts and not lost:
            return None
        stops.forget_stops_from(cursor, known.stream_id, batch)
    checkpoint.move_on(batch, behind)
    return seeded_at(known.stream_id, behind, lost)


def _behind_gaps(
    cursor: Cursor,
    checkpoints: Checkpoints[TopicCheckpoint],
    source: KafkaSource,
    now: Mapping[str, Topic],
    starts: Sequence[Offsets],
) -> list[Offsets]:
    """Return the positions to read from; those at the start of accepted gaps are moved to their end."""
    ends = offsets.accepted_ends(cursor, checkpoints.pipeline)

    def behind(topic: Topic, partition: int, at: int) -> int:
        while (end := ends.get((topic.topic_id, partition, at), at)) > at:
            at = end
        return at

    def moved(topic: Topic, positions: Mapping[int, int]) -> dict[int, int]:
        begun = {partition: behind(topic, partition, at) for partition, at in positions.items()}
        others = {
            partition: behind(topic, partition, 0) for partition in topic.earliest.keys() - begun.keys()
        }
        return {**begun, **{partition: at for partition, at in others.items() if at}}

    return [
        {
            **topics,
            **{
                name: positions_behind
                for name in one.topics
                if (positions_behind := moved(now[name], topics.get(name, {})))
            },
        }
        for one, topics in zip(source.declared, starts, strict=True)
    ]


def where_to_begin(
    cursor: Cursor,
    checkpoints: Checkpoints[TopicCheckpoint],
    source: KafkaSource,
    now: Mapping[str, Topic],
    accepted: AcceptedGaps | None,
    last_stream: StreamState | None,
) -> tuple[list[Offsets], Sequence[Gap]]:
    """Return the offsets that follow all that was delivered, and what was accepted as gone.

    Raises OffsetsGone where it is not accepted. What the `last_stream` had found and not delivered yet, of
    partitions that the ledger never saw, counts as gone as well when Kafka no longer has it.
    """
    lost = gaps(now, _known(cursor, checkpoints, source, last_stream))
    if lost and accepted is None:
        raise source.gone(lost)
    if accepted is not None:
        _accept(cursor, checkpoints, lost, accepted)
    return source.seeds(now, offsets.reached(cursor, checkpoints.pipeline)), lost


def _accept(
    cursor: Cursor, checkpoints: Checkpoints[TopicCheckpoint], lost: Sequence[Gap], accepted: AcceptedGaps
) -> None:
    offsets.accept(cursor, checkpoints.pipeline, lost, who=accepted.who, why=accepted.why)


def _known(
    cursor: Cursor,
    checkpoints: Checkpoints[TopicCheckpoint],
    source: KafkaSource,
    last_stream: StreamState | None,
) -> Sequence[Reached]:
    """Return where the pipeline is, by the ledger and, if it says, by the checkpoint of the stream before."""
    reached = offsets.reached(cursor, checkpoints.pipeline)
    if last_stream is None:
        return reached
    noted = streams.note_topics(cursor, last_stream.stream_id, {})
    try:
        return source.known(checkpoints.of(last_stream.stream_id), last_stream.next_batch, reached, noted)
    except CheckpointDamaged:
        return reached


def seeded_at(stream_id: str, seeds: Sequence[Offsets], gone: Sequence[Gap]) -> Seeded:
    """Return the stream whose checkpoint begins at these offsets."""
    partitions = sum(len(partitions) for topics in seeds for partitions in topics.values())
    return Seeded(stream_id=stream_id, seen=partitions, gone=gone)
