"""Seeds a new stream over topics with a checkpoint that begins exactly at the ledger's offsets."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etl.common.database import Cursor, transaction
from etl.common.errors import CheckpointDamaged
from etl.ledger import offsets, pipelines, stops, streams
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
            cursor, checkpoints.pipeline, stream_id, checkpoint=checkpoint.uri, first_batch=1
        )
    checkpoint.seed_at(seeds, stream_id=stream_id)
    return seeded_at(stream_id, seeds, gone)


def skip_gaps(
    dsn: str,
    checkpoints: Checkpoints[TopicCheckpoint],
    source: KafkaSource,
    accepted: AcceptedGaps | None,
    known: StreamState,
) -> Seeded | None:
    """Move the stream's checkpoint past what aged out before it was read; its state stays as it is.

    Raises OffsetsGone where that is not accepted. What aged out of a topic before the stream knew of it need
    not be accepted, and is on record as well.

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
        at = _known(cursor, checkpoints, source, known)
        new = now.keys() - {one.topic for one in at}  # begin with the oldest record that is there
        found = new & {topic for topics in planned for topic in topics}  # but for what a batch was planned of
        gone = gaps(now, [*at, *from_the_first(now, sorted(found))])
        declared_since = gaps(now, from_the_first(now, sorted(new - found)))
        if starts is None or any(gap.end is None for gap in gone):
            return None
        if gone and accepted is None:
            raise source.gone(gone)
        if accepted is not None:
            _accept(cursor, checkpoints, gone, accepted)
        _accept(cursor, checkpoints, declared_since, DECLARED_SINCE)
        gone = [*gone, *declared_since]
        there = _behind_gaps(cursor, checkpoints, source, now, starts)
        if there == starts and not gone:
            return None
        stops.forget_stops_from(cursor, known.stream_id, batch)
    checkpoint.move_on(batch, there)
    return seeded_at(known.stream_id, there, gone)


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
            **{name: found for name in one.topics if (found := moved(now[name], topics.get(name, {})))},
        }
        for one, topics in zip(source.declared, starts, strict=True)
    ]


def where_to_begin(
    cursor: Cursor,
    checkpoints: Checkpoints[TopicCheckpoint],
    source: KafkaSource,
    now: Mapping[str, Topic],
    accepted: AcceptedGaps | None,
    before: StreamState | None,
) -> tuple[list[Offsets], Sequence[Gap]]:
    """Return the offsets that follow all that was delivered, and what was accepted as gone.

    Raises OffsetsGone where it is not accepted. What the stream `before` had found and not delivered yet, of
    partitions that the ledger never saw, counts as gone as well when Kafka no longer has it.
    """
    gone = gaps(now, _known(cursor, checkpoints, source, before))
    if gone and accepted is None:
        raise source.gone(gone)
    if accepted is not None:
        _accept(cursor, checkpoints, gone, accepted)
    return source.seeds(now, offsets.reached(cursor, checkpoints.pipeline)), gone


def _accept(
    cursor: Cursor, checkpoints: Checkpoints[TopicCheckpoint], gone: Sequence[Gap], accepted: AcceptedGaps
) -> None:
    offsets.accept(cursor, checkpoints.pipeline, gone, who=accepted.who, why=accepted.why)


def _known(
    cursor: Cursor, checkpoints: Checkpoints[TopicCheckpoint], source: KafkaSource, before: StreamState | None
) -> Sequence[Reached]:
    """Return where the pipeline is, by the ledger and, if it says, by the checkpoint of the stream before."""
    reached = offsets.reached(cursor, checkpoints.pipeline)
    if before is None:
        return reached
    noted = streams.note_topics(cursor, before.stream_id, {})
    try:
        return source.known(checkpoints.of(before.stream_id), before.next_batch, reached, noted)
    except CheckpointDamaged:
        return reached


def seeded_at(stream_id: str, seeds: Sequence[Offsets], gone: Sequence[Gap]) -> Seeded:
    """Return the stream whose checkpoint begins at these offsets."""
    partitions = sum(len(partitions) for topics in seeds for partitions in topics.values())
    return Seeded(stream_id=stream_id, seen=partitions, gone=gone)
