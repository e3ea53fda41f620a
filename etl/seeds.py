"""A new stream over topics, whose checkpoint begins exactly where the ledger is."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etl import ledger, offsets
from etl.checkpoint_topics import Offsets, TopicCheckpoint
from etl.database import session
from etl.errors import CheckpointDamaged
from etl.kafka import Topic, gaps
from etl.ledger import StreamState
from etl.offsets import Gap, Reached
from etl.preflight import Checkpoints

if TYPE_CHECKING:
    from etl.topics import TopicSource


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A person's word that what Kafka has no longer is lost."""

    who: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """A stream that can run."""

    stream_id: str
    partitions: int  # that its checkpoint knows
    gone: Sequence[Gap]  # what was accepted as gone


def seeded_topics(
    dsn: str,
    checkpoints: Checkpoints,
    source: TopicSource,
    accepted: Accepted | None,
    before: StreamState | None,
) -> Seeded:
    """A new current stream that reads on from what was delivered; OffsetsGone where that is gone, and not accepted.

    Gone is as well what the stream `before` had found and not delivered yet, of partitions that the ledger never saw.

    The ledger is read in the transaction that makes the stream current: no other stream can deliver later.
    """
    stream_id, now = str(uuid.uuid4()), source.now()
    checkpoint = checkpoints.of(stream_id)
    assert isinstance(checkpoint, TopicCheckpoint)
    found = _found(checkpoints, before)
    with session(dsn) as cursor:
        ledger.lock(cursor, checkpoints.pipeline)
        reached = offsets.reached(cursor, checkpoints.pipeline)
        gone = [*gaps(now, reached), *_aged(found, now, reached)]
        if gone and accepted is None:
            raise source.gone(gone)
        if accepted is not None:
            offsets.accept(cursor, checkpoints.pipeline, gone, who=accepted.who, why=accepted.why)
        seeds = source.seeds(now, offsets.reached(cursor, checkpoints.pipeline))
        ledger.register_stream(
            cursor, checkpoints.pipeline, stream_id, checkpoint=checkpoint.uri, first_batch=1
        )
    checkpoint.seed_at(seeds, stream_id=stream_id)
    partitions = sum(len(partitions) for topics in seeds for partitions in topics.values())
    return Seeded(stream_id=stream_id, partitions=partitions, gone=gone)


def _found(checkpoints: Checkpoints, before: StreamState | None) -> Sequence[Offsets]:
    """Where the stream's next batch was to start, source by source; nothing where its checkpoint does not say."""
    if before is None:
        return []
    checkpoint = checkpoints.of(before.stream_id)
    assert isinstance(checkpoint, TopicCheckpoint)
    try:
        return checkpoint.starts(before.next_batch) or []
    except CheckpointDamaged:
        return []


def _aged(found: Sequence[Offsets], now: Mapping[str, Topic], reached: Sequence[Reached]) -> list[Gap]:
    known = {(one.topic_id, one.partition) for one in reached}
    return [
        Gap(topic=topic, topic_id=now[topic].topic_id, partition=partition, start=start, end=earliest)
        for offsets_of in found
        for topic, partitions in sorted(offsets_of.items())
        for partition, start in sorted(partitions.items())
        if topic in now
        and (now[topic].topic_id, partition) not in known
        and start < (earliest := now[topic].earliest.get(partition, 0))
    ]
