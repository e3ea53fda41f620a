"""Ranges of Kafka's offsets that a batch read, each of one partition of one topic.

A topic is identified by its id: one that is deleted and recreated has the same name and another id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from psycopg2.extras import execute_values

from etl.common.database import Cursor, rows_as
from etl.common.errors import InputsChanged
from etl.common.statements import Statements
from etl.common.wording import first_few

STATEMENTS = Statements(__name__)

T = TypeVar("T")

_URI = re.compile(r"kafka://([A-Za-z0-9._-]+)/(\d+)/(\d+)-(\d+)")


@dataclass(frozen=True, kw_only=True)
class Range:
    """Some records of a partition, one after the other."""

    source: int  # position among the pipeline's sources
    topic: str
    topic_id: str  # as Kafka's own tools write it
    partition: int
    start: int  # the first offset
    end: int  # the offset after the last

    @property
    def empty(self) -> bool:
        return self.start == self.end

    @property
    def uri(self) -> str:
        return f"kafka://{self.topic}/{self.partition}/{self.start}-{self.end}"

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class TopicPartition(NamedTuple):
    """A partition, whatever its topic is called."""

    topic_id: str
    partition: int


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How far a pipeline has come in a partition."""

    topic: str
    topic_id: str
    partition: int
    reached: int  # the offset of the next record


def parsed(uri: str) -> tuple[str, int, int, int]:
    """Split a range's URI into topic, partition, start and end; raise ValueError where it names no range."""
    found = _URI.fullmatch(uri)
    if found is None:
        raise ValueError(f"{uri!r} names no range of offsets")
    return found[1], int(found[2]), int(found[3]), int(found[4])


def next_ranges(cursor: Cursor, pipeline: str, batch_id: int, ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges of a stream's batch that go on record.

    Raises InputsChanged unless each starts where the deliveries before it ended. The caller holds the
    pipeline's lock. An empty range is kept only where its partition was never seen before.
    """
    before = _reached_of(cursor, pipeline, ranges) if ranges else {}
    wrong = [one for one in ranges if before[one.where] not in (None, one.start)]
    if wrong:
        some = first_few([f"{one.uri}, the ledger is at {before[one.where]}" for one in wrong])
        raise InputsChanged(
            f"Batch {batch_id} of {pipeline} was not committed: {len(wrong)} of its ranges do not start where the"
            f" deliveries before it ended: {some}",
            remedy=f"`sluice recover {pipeline}`, which seeds a checkpoint with what was delivered",
        )
    return [one for one in ranges if not one.empty or before[one.where] is None]


def insert_ranges(cursor: Cursor, pipeline: str, delivery_id: int, ranges: Sequence[Range]) -> None:
    """Record the ranges that a delivery read."""
    values = [
        (delivery_id, pipeline, one.source, one.topic, one.topic_id, one.partition, one.start, one.end)
        for one in ranges
    ]
    if values:
        execute_values(cursor, STATEMENTS.compose("insert"), values)


def _reached_of(cursor: Cursor, pipeline: str, ranges: Sequence[Range]) -> dict[TopicPartition, int | None]:
    STATEMENTS.execute(
        cursor,
        "reached_of",
        pipeline=pipeline,
        topic_ids=[one.topic_id for one in ranges],
        partitions=[one.partition for one in ranges],
    )
    return {TopicPartition(topic_id, partition): at for topic_id, partition, at in cursor.fetchall()}


def ranges_of(cursor: Cursor, deliveries: Sequence[int]) -> list[Range]:
    """Return the ranges that these deliveries read, as recorded; those of a partition in their order."""
    return rows_as(STATEMENTS.execute(cursor, "of_deliveries", deliveries=deliveries), Range)


def joined(ranges: Sequence[Range]) -> list[Range]:
    """Join each range with the one just before it where it continues the same partition without a gap.

    The records stay the same. Pass the ranges of a partition one after the other, in order.
    """
    found: list[Range] = []
    for one in ranges:
        if found and (found[-1].where, found[-1].end) == (one.where, one.start):
            found[-1] = replace(found[-1], end=one.end)
        else:
            found.append(one)
    return found


def one_range_per_partition(ranges: Iterable[T], where: Callable[[T], Hashable]) -> list[list[T]]:
    """Group items into turns, each with at most one of a partition: Spark reads no more of it at a time.

    Items keep their order.
    """
    turns: list[list[T]] = []
    before = Counter[Hashable]()
    for one in ranges:
        partition = where(one)
        if before[partition] == len(turns):
            turns.append([])
        turns[before[partition]].append(one)
        before[partition] += 1
    return turns


def reached(cursor: Cursor, pipeline: str) -> list[Reached]:
    """Return how far the pipeline has come in each partition; leaves out topics accepted as deleted.

    That is where it has read to, or where an accepted gap ends.
    """
    return rows_as(STATEMENTS.execute(cursor, "reached", pipeline=pipeline), Reached)


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Records that Kafka has no longer, and that were not read."""

    topic: str
    topic_id: str
    partition: int
    start: int  # the first that is gone
    end: int | None  # the first that is there; None: the topic was deleted, and all that came later with it

    def __str__(self) -> str:
        if self.end is None:
            return f"{self.topic}/{self.partition} (topic id {self.topic_id}) from {self.start} on"
        return f"{self.topic}/{self.partition} from {self.start} up to {self.end - 1}"


def accept_skipped(cursor: Cursor, pipeline: str, ranges: Sequence[Range]) -> None:
    """Record again what was left out before a delivery that is put back.

    It had been accepted before, but in a database that is lost.
    """
    before = _reached_of(cursor, pipeline, ranges) if ranges else {}
    skipped = [
        Gap(topic=one.topic, topic_id=one.topic_id, partition=one.partition, start=reached, end=one.start)
        for one in ranges
        if (reached := before[one.where]) is not None and reached < one.start
    ]
    accept(cursor, pipeline, skipped, who="recover", why="accepted before PostgreSQL was restored")


def accepted_ends(cursor: Cursor, pipeline: str) -> dict[tuple[str, int, int], int]:
    """Return where accepted gaps end, by topic id, partition and start; leaves out deleted topics."""
    STATEMENTS.execute(cursor, "accepted_ends", pipeline=pipeline)
    return {(topic_id, partition, start): end for topic_id, partition, start, end in cursor.fetchall()}


def accept(cursor: Cursor, pipeline: str, gaps: Sequence[Gap], *, who: str, why: str) -> None:
    """Record that records in these gaps were lost, and who accepted it: later ranges start behind them."""
    for gap in gaps:
        STATEMENTS.execute(
            cursor,
            "accept_gap",
            pipeline=pipeline,
            topic=gap.topic,
            topic_id=gap.topic_id,
            partition=gap.partition,
            start=gap.start,
            end=gap.end,
            who=who,
            why=why,
        )
