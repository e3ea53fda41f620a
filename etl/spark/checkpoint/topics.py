"""Reads Spark's checkpoint of a query over topics of Kafka: the offsets of a batch; seeds a new one from the ledger.

    sources/<i>/0      a NUL, v1 | {"<topic>": {"<partition>": <offset>}}: where the first batch starts
    offsets/<batch>    v1 | a line of JSON about the batch | for each source such an object: where the batch ends

A partition that is new in a batch starts at 0: Spark stops where it doesn't.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from etl.common.wording import pluralize
from etl.ledger.offsets import Range
from etl.spark.checkpoint.format import VOID_OFFSET, About, Torn, lines_text, offset_lines
from etl.spark.checkpoint.reader import Offsets, PlannableCheckpoint, Read, damaged, noting


@dataclass(frozen=True, kw_only=True)
class TopicCheckpoint(PlannableCheckpoint):
    """One look at a checkpoint of a query over topics."""

    def reached(self, batch_id: int) -> list[Offsets]:
        with self._or_damaged():
            return self._offsets(batch_id)

    def starts(self, batch_id: int) -> list[Offsets] | None:
        if batch_id == 0 and not self.folder.has("sources"):
            return None
        with self._or_damaged():
            return self._starts(batch_id)

    def _starts(self, batch_id: int) -> list[Offsets]:
        return self._offsets(batch_id - 1) if batch_id else [self._first(n) for n in range(self.sources)]

    def ranges(self, batch_id: int, topic_ids: Mapping[str, str]) -> tuple[Range, ...]:
        try:
            starts, ends = self._starts(batch_id), self._offsets(batch_id)
        except Torn as torn:
            seen = f"the offsets of batch {batch_id} can't be read: {torn}"
            raise damaged(self.uri, [seen]) from None
        return tuple(
            Range(
                source=source,
                topic=topic,
                topic_id=topic_ids[topic],
                partition=partition,
                start=starts[source].get(topic, {}).get(partition, 0),
                end=end,
            )
            for source, topics in enumerate(ends)
            for topic, partitions in sorted(topics.items())
            for partition, end in sorted(partitions.items())
        )

    def _source_damage(self) -> list[str]:
        damage: list[str] = []
        for batch in self.offsets[-2:]:
            with noting(damage):
                self._offsets(batch)
        if self.offsets == (0,) and not self.commits:
            for source in range(self.sources):
                with noting(damage):
                    self._first(source)
        return damage

    def _offsets(self, batch_id: int) -> list[Offsets]:
        name = f"offsets/{batch_id}"
        lines = offset_lines(name, self.folder.read(name))
        if len(lines) != self.sources:
            raise Torn(f"{name} is of {pluralize(len(lines), 'source')}, the pipeline has {self.sources}")
        return [_parsed(name, line) for line in lines]

    def _first(self, source: int) -> Offsets:
        """Return the offsets where the first batch of a source starts. Raises Torn when they can't be told."""
        name = f"sources/{source}/0"
        version, _, line = self.folder.read(name).lstrip("\0").partition("\n")
        if version != "v1":
            raise Torn(f"{name} is torn, or of another version than v1: it begins with {version[:20]!r}")
        return _parsed(name, line)

    def plan(self, batch_id: int, read: Read, *, times: int, about: About) -> None:
        """Write the logs of the next batch, of exactly these ranges: Spark runs it when a query starts.

        What lies between the ranges and where the batch before ended is left out.
        """
        last_ends = self._offsets(batch_id - 1) if batch_id > 0 else [{} for _ in range(self.sources)]
        starts = _moved(last_ends, [(one, one.start) for one in read.ranges])
        ends = _moved(starts, [(one, one.end) for one in read.ranges])
        self.begin_at(batch_id, starts)
        self.folder.write(f"offsets/{batch_id}", lines_text([_text(one) for one in ends] * times, about))

    def begin_at(self, batch_id: int, positions: Sequence[Offsets]) -> None:
        """Write where a batch that is not planned starts.

        What the batches before it left in the state stays.
        """
        lines = [_text(offsets) for offsets in positions]
        if batch_id > 0:
            self.folder.write(f"offsets/{batch_id - 1}", lines_text(lines, self.about(batch_id - 1)))
            return
        for source, line in enumerate(lines):
            self.folder.write(f"sources/{source}/0", f"\0v1\n{line}")

    def move_on(self, batch_id: int, positions: Sequence[Offsets]) -> None:
        """Write where a batch that was not delivered starts, and remove its plan, if it has one.

        What the batches before it left in the state stays.
        """
        self.folder.remove(f"offsets/{batch_id}")
        self.begin_at(batch_id, positions)

    def seed_at(self, positions: Sequence[Offsets], *, stream_id: str) -> None:
        """Write a checkpoint on which Spark goes on with batch 1 from these offsets.

        `metadata` is written last: a seeding that was not finished is damage, and is never taken for new.
        Raises CheckpointDamaged where a checkpoint is already.
        """
        self._require_empty("can't be seeded")
        self.begin_at(0, positions)
        self._begin_behind(lines_text(map(_text, positions), About(watermark_ms=0, time_ms=0)), stream_id)


def _parsed(name: str, line: str) -> Offsets:
    if line == VOID_OFFSET:
        return {}
    try:
        offsets = {
            str(topic): {int(partition): int(offset) for partition, offset in partitions.items()}
            for topic, partitions in json.loads(line).items()
        }
    except (ValueError, AttributeError, TypeError):
        raise Torn(f"{name} is torn: {line[:60]!r} is no offset of a topic") from None
    return offsets


def _moved(positions: Sequence[Offsets], to: Iterable[tuple[Range, int]]) -> Sequence[Offsets]:
    """Return the positions of each source, with the partitions of some ranges at other offsets."""
    moved = [{topic: dict(partitions) for topic, partitions in of_one.items()} for of_one in positions]
    for one, offset in to:
        moved[one.source].setdefault(one.topic, {})[one.partition] = offset
    return moved


def _text(offsets: Offsets) -> str:
    named = {topic: {str(one): offset for one, offset in some.items()} for topic, some in offsets.items()}
    return json.dumps(named, separators=(",", ":"))
