"""Reads a pipeline's topics of Kafka: records as typed rows, malformed ones kept as their raw text.

No record is dropped: one without a value (a tombstone) is a row whose columns of the schema are null, and an empty
value is malformed. A range of offsets is identified by its URI, kafka://<topic>/<partition>/<start>-<end>.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from etl.common.database import transaction
from etl.common.errors import CheckpointDamaged, OffsetsGone
from etl.common.record_columns import SOURCE_PATH
from etl.common.wording import WHY, first_few, pluralize
from etl.ledger import offsets, streams
from etl.ledger.offsets import Gap, Range, Reached, one_range_per_partition, parsed
from etl.pipeline import Kafka, declaration
from etl.pipeline.declaration import RECORD
from etl.sources.base import Source
from etl.sources.kafka.cluster import Cluster, Topic, gaps
from etl.sources.kafka.read_errors import is_of_kafka
from etl.sources.parsing import Reading, Records, json_rows, none_malformed, none_of, only_column, union
from etl.sources.raw.tasks import uris_on_topics
from etl.spark.checkpoint.reader import Checkpoint, Offsets
from etl.spark.state_plan import SOURCE_NUMBER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from etl.ledger.inputs import Input
    from etl.ledger.streams import StreamState
    from etl.sources.counts import Counted


PARTITIONS = 1_000  # that topics are thought to have at most; each is a task


@dataclass(frozen=True, kw_only=True)
class KafkaSource(Source):
    """What a run reads, where its sources are topics."""

    declared: Sequence[Kafka]
    cluster: Cluster

    @property
    def _names(self) -> list[str]:
        return [name for source in self.declared for name in source.topics]

    @cached_property
    def number_of(self) -> Mapping[str, int]:
        """Map each topic to the number of the source that reads it."""
        return {name: n for n, source in enumerate(self.declared) for name in source.topics}

    @property
    def _undeclared(self) -> Sequence[Kafka]:
        """Return the sources that declare no limit of a batch."""
        return [one for one in self.declared if one.max_offsets is None]

    @property
    def has_default_limit(self) -> bool:
        return self.takes_part and bool(self._undeclared)

    @property
    def _default_offsets(self) -> int | None:
        """Return how many offsets a batch takes at most of each source that declares no limit; None: all there are."""
        return max(declaration.BATCH_OFFSETS // len(self._undeclared), 1) if self.has_default_limit else None

    def cut(self, inputs: Sequence[Input], ranges: Sequence[Range], *, left: int) -> str | None:  # noqa: ARG002
        topics = {name for one in self._undeclared for name in one.topics}
        taken = [one for one in ranges if one.topic in topics]
        offsets = sum(one.end - one.start for one in taken)
        # Spark gives each partition its share of the limit, rounded down.
        if self._default_offsets is None or offsets <= self._default_offsets - len(taken):
            return None
        now = self.now()
        waiting = sum(now[one.topic].latest[one.partition] - one.end for one in taken)
        if not waiting:
            return None
        return (
            f"{pluralize(offsets, 'offset')}, and {pluralize(waiting, 'offset')} come later: where its sources declare no"
            f" max_offsets, a batch takes about {declaration.BATCH_OFFSETS:,}"
        )

    def compacted(self) -> list[str]:
        """Name the topics of which Kafka keeps the newest record of each key."""
        return self.cluster.compacted(self._names)

    @cached_property
    def topic_ids(self) -> Mapping[str, str]:
        """Return the ids of the topics, as they were when they were first asked for."""
        return self.cluster.topic_ids(self._names)

    def now(self) -> dict[str, Topic]:
        return self.cluster.topics(self._names)

    def known(
        self,
        checkpoint: Checkpoint,
        batch_id: int,
        reached: Sequence[Reached],
        noted: Mapping[str, str],
    ) -> list[Reached]:
        """Return where the pipeline is: what it `reached` by the ledger, else where its next batch is to start.

        Before the first delivery of a topic its id is the one that was `noted` when the stream first looked
        at it.
        """
        ids = {**self.topic_ids, **noted}
        delivered = {(one.topic_id, one.partition) for one in reached}
        begun = [
            Reached(topic=topic, topic_id=ids[topic], partition=partition, reached=start)
            for topics in checkpoint.starts(batch_id) or ()
            for topic, partitions in topics.items()
            for partition, start in partitions.items()
            if topic in ids and (ids[topic], partition) not in delivered
        ]
        return [*reached, *begun]

    def require_readable(self, dsn: str, stream: StreamState, checkpoint: Checkpoint) -> None:
        with transaction(dsn) as cursor:
            reached = offsets.reached(cursor, self.pipeline.name)
            noted = streams.note_topics(cursor, stream.stream_id, self.topic_ids)
        self.require_next(checkpoint, stream.next_batch, reached, noted)

    def require_next(
        self, checkpoint: Checkpoint, batch_id: int, reached: Sequence[Reached], noted: Mapping[str, str]
    ) -> None:
        """Raise OffsetsGone where Kafka no longer has what comes next, or where it went back in time.

        Raises OffsetsGone for a recreated topic, too, and CheckpointDamaged where Spark would stop. The pipeline is
        where `known` says.
        """
        known = self.known(checkpoint, batch_id, reached, noted)
        name, known_ids, now = self.pipeline.name, self.topic_ids, self.now()
        self._refuse_remade({topic: one.topic_id for topic, one in now.items()}, known_ids)
        if missing := gaps(now, known):
            raise self.gone(missing)
        if behind := [one for one in known if one.topic in now and one.reached > _latest(now, one)]:
            some = first_few(
                [
                    f"{one.topic}/{one.partition} ends at {_latest(now, one)}, and {one.reached} were read"
                    for one in behind
                ]
            )
            raise OffsetsGone(
                f"Kafka went back in time under {name}: {some}",
                remedy="find out what the brokers lost. A topic that lost records has to be recreated; then"
                f" `sluice recover {name} --accept-gone {WHY}`",
            )
        if misfit := self.misfit(checkpoint, batch_id, now):
            raise CheckpointDamaged(
                f"Spark can't go on with checkpoint {checkpoint.uri} of {name}: {first_few(misfit)}",
                remedy=f"`sluice recover {name}`, which goes on with all that is there and names what is gone",
            )

    def misfit(self, checkpoint: Checkpoint, batch_id: int, now: Mapping[str, Topic]) -> list[str]:
        """Tell why Spark would refuse to read the next batch, a sentence each.

        The ledger could go on all the same.
        """
        starts = checkpoint.starts(batch_id)
        if starts is None:
            return []
        reasons = []
        ends = checkpoint.reached(batch_id) if batch_id in checkpoint.offsets else starts
        for source, begun, planned in zip(self.declared, starts, ends, strict=True):
            reasons += [
                f"it reads {one}, which is not declared there"
                for one in sorted({*begun, *planned})
                if one not in source.topics
            ]
            reasons += [
                f"{one}/{partition} ends at {latest}, and it is to read up to {end}"
                for one in source.topics
                for partition, end in planned.get(one, {}).items()
                if end > (latest := now[one].latest.get(partition, 0))
            ]
            for topic in source.topics:
                for partition, earliest in now[topic].earliest.items():
                    start = begun.get(topic, {}).get(partition, 0)
                    if start < earliest:
                        reasons.append(f"{topic}/{partition} begins at {earliest}, and it is at {start}")
        return reasons

    def seeds(self, now: Mapping[str, Topic], reached: Sequence[Reached]) -> list[Offsets]:
        """Return the offsets where a new checkpoint begins, source by source.

        They are where the ledger is, and the first record of what was never read.
        """
        known = {(one.topic_id, one.partition): one.reached for one in reached}
        return [
            {
                topic: {
                    partition: known.get((now[topic].topic_id, partition), earliest)
                    for partition, earliest in sorted(now[topic].earliest.items())
                }
                for topic in source.topics
            }
            for source in self.declared
        ]

    def gone(self, missing: Sequence[Gap]) -> OffsetsGone:
        name = self.pipeline.name
        remade = sorted({gap.topic for gap in missing if gap.end is None})
        why = f"; {', '.join(remade)} was deleted and recreated" if remade else ""
        some = first_few(missing, 10)
        return OffsetsGone(
            f"Kafka no longer has all records that come next for {name}{why}. Gone before they were read: {some}",
            remedy=f"to go on without them, on record: `sluice recover {name} --accept-gone {WHY}`",
        )

    def require_same_topics(self, ranges: Sequence[Range]) -> None:
        """Raise OffsetsGone when a topic is no longer the one that these ranges are of.

        What was read may be of another's records.
        """
        self._refuse_remade(self.cluster.topic_ids(self._names), {one.topic: one.topic_id for one in ranges})

    def is_cause_of(self, error: Exception) -> bool:
        return is_of_kafka(error)

    def _refuse_remade(self, now: Mapping[str, str], before: Mapping[str, str]) -> None:
        if remade := [topic for topic in before if before[topic] != now[topic]]:
            name = self.pipeline.name
            raise OffsetsGone(
                f"{', '.join(remade)} was deleted and recreated while {name} read it; the batch under way was not"
                " delivered",
                remedy=f"`sluice run {name}`, which says what is gone",
            )

    def is_whole(self, counted: Counted, inputs: Iterable[Input], ranges: Iterable[Range]) -> bool | None:  # noqa: ARG002
        # Of a topic that is compacted or written in transactions, some offsets have no record.
        return counted.rows == sum(one.end - one.start for one in ranges) or None

    def by_source(self, uris: Iterable[str]) -> dict[int, list[str]]:
        grouped: dict[int, list[str]] = {}
        for uri in uris:
            grouped.setdefault(self.number_of[parsed(uri)[0]], []).append(uri)
        return grouped

    def _stream(self) -> DataFrame:
        streams: dict[str | None, list[DataFrame]] = {}
        for number, source in enumerate(self.declared):
            options = {
                **self.cluster.options,
                SOURCE_NUMBER: str(number),
                "subscribe": ",".join(source.topics),
                "startingOffsets": "earliest",
            }
            if (most := source.max_offsets or self._default_offsets) is not None:
                options["maxOffsetsPerTrigger"] = str(most)
            frame = self.spark.readStream.format("kafka").options(**options).load()
            rows = self._records(frame, source, self.reading(tasks=PARTITIONS))
            streams.setdefault(source.stream, []).append(rows)
        return self._put_out({name: union(frames) for name, frames in streams.items()})

    def _static(self, uris: Iterable[str], broken: Iterable[str], *, malformed: bool = False) -> Records:  # noqa: ARG002
        uris = list(uris)
        reading = self.reading(malformed=malformed, tasks=max(len(uris), PARTITIONS))
        frames: dict[str | None, list[DataFrame]] = {name: [] for name in self.fields}
        for number, some in self.by_source(uris).items():
            source = self.declared[number]
            for ranges in _loads(some):
                reader = self.spark.read.format("kafka").options(**self.cluster.options, **ranges)
                rows = self._records(reader.load(), source, reading)
                frames[source.stream].append(rows)
        return {
            name: union(some) if some else none_of(self.spark, self.fields[name], RECORD, reading)
            for name, some in frames.items()
        }

    def _records(self, frame: DataFrame, source: Kafka, reading: Reading) -> DataFrame:
        return records(frame, source, self.fields[source.stream], reading)


def _latest(now: Mapping[str, Topic], one: Reached) -> int:
    return now[one.topic].latest[one.partition]


def _loads(uris: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the reader's options for exactly these ranges: one load takes one of each partition."""
    for turn in one_range_per_partition(map(parsed, uris), where=lambda one: one[:2]):
        load: dict[str, dict[str, tuple[int, int]]] = {}
        for topic, partition, start, end in turn:
            load.setdefault(topic, {})[str(partition)] = start, end
        yield {
            "assign": json.dumps({topic: sorted(map(int, some)) for topic, some in load.items()}),
            "startingOffsets": _of_each(load, 0),
            "endingOffsets": _of_each(load, 1),
        }


def _of_each(load: Mapping[str, Mapping[str, tuple[int, int]]], which: int) -> str:
    """Return the start (0), or the end (1), of each partition's range as JSON."""
    return json.dumps(
        {topic: {partition: one[which] for partition, one in some.items()} for topic, some in load.items()}
    )


def records(frame: DataFrame, source: Kafka, schema: StructType, reading: Reading) -> DataFrame:
    """Turn Spark's records of Kafka into rows of the schema's columns, those of `RECORD` and what is `reading`'s."""
    from pyspark.sql import functions as F

    columns: dict[str, Any] = {
        "_key": F.col("key"),
        "_headers": F.col("headers"),
        "_topic": F.col("topic"),
        "_partition": F.col("partition"),
        "_offset": F.col("offset"),
        "_timestamp": F.col("timestamp"),
        "_tombstone": F.col("value").isNull(),
    }
    carried = [column.alias(name) for name, column in columns.items()]
    if source.kind == "text":
        line = F.col("value").cast("string").alias(only_column(f"topics ({source.named})", schema))
        rows = frame.select(line, *none_malformed(reading), *carried)
    else:
        rows = json_rows(frame.select("value", *carried), schema, reading, uris_on_topics)
    uri = F.format_string("kafka://%s/%d/%d", "_topic", "_partition", "_offset")
    return rows.withColumn(SOURCE_PATH, uri) if reading.names_files else rows
