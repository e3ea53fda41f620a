"""Asks a Kafka cluster, through Spark's own JVM, for its topics, their ids and their offsets.

It writes nothing to the cluster: no group commits an offset, and no topic is created. Secrets come from a file and are
in no message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etl.common.errors import ServiceAway, SetupError
from etl.common.outcome import in_short
from etl.common.settings import Settings
from etl.ledger.offsets import Gap, Range, Reached
from etl.spark.java_errors import Cause, causes, classify
from etl.spark.jvm import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_MS = 30_000  # for an answer; the user's file may say another
# The remedy where Kafka refuses.
SEE_RIGHTS = "see SLUICE_KAFKA_PROPERTIES, and the rights to describe and to read the topics"
# What the user's file may say: how to reach the brokers. What is read, and how far, is Sluice's own.
_PREFIXES = ("security.", "sasl.", "ssl.", "client.", "socket.", "reconnect.", "retry.", "metadata.")
_NAMES = frozenset(
    {"request.timeout.ms", "default.api.timeout.ms", "connections.max.idle.ms", "receive.buffer.bytes"}
    | {"fetch.max.bytes", "fetch.min.bytes", "fetch.max.wait.ms", "max.partition.fetch.bytes"}
)


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A topic as it is now."""

    topic_id: str
    earliest: Mapping[int, int]  # partition -> the first offset that is there
    latest: Mapping[int, int]  # partition -> the offset of the next record


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """How to reach the brokers."""

    servers: str
    properties: Mapping[str, str] = field(repr=False)
    spark: SparkSession = field(repr=False)

    @property
    def options(self) -> dict[str, str]:
        """Return the options for Spark's reader; it takes no records of transactions that were taken back."""
        own = {f"kafka.{name}": value for name, value in self.properties.items()}
        return {
            **own,
            "kafka.bootstrap.servers": self.servers,
            "kafka.isolation.level": "read_committed",
            "failOnDataLoss": "true",
            "includeHeaders": "true",
        }

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics.

        Raises SetupError where one is not there, has no id or may not be read, and ServiceAway without an
        answer.
        """
        with self._admin() as admin:
            return {
                name: self._id(name, description)
                for name, description in self._descriptions(admin, names).items()
            }

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return topics with the offsets that can be read now. Raises what `topic_ids` raises."""
        with self._admin() as admin:
            descriptions = self._descriptions(admin, names)
            # An array, for the end of a Java iterator is an exception, which takes PySpark 20 ms to make out.
            partitions = [
                (name, one.partition())
                for name, description in descriptions.items()
                for one in description.partitions().toArray()
            ]
            spec = self._kafka("clients.admin.OffsetSpec")
            earliest = self._offsets(admin, partitions, spec.earliest())
            latest = self._offsets(admin, partitions, spec.latest())
        return {
            name: Topic(topic_id=self._id(name, description), earliest=earliest[name], latest=latest[name])
            for name, description in descriptions.items()
        }

    def compacted(self, names: Sequence[str]) -> list[str]:
        """Name the topics that lose records which have a newer one of their key.

        Raises what `topic_ids` raises.
        """
        resource = self._kafka("common.config.ConfigResource")
        resources = {name: resource(resource.Type.TOPIC, name) for name in names}
        with self._admin() as admin:
            answers = admin.describeConfigs(list(resources.values())).values()
            configs = {name: self._answer(answers[one], f"topic {name}") for name, one in resources.items()}
        return [
            name for name, config in configs.items() if "compact" in str(config.get("cleanup.policy").value())
        ]

    def _kafka(self, name: str) -> Any:
        return java_class(self.spark, f"org.apache.kafka.{name}")

    def _id(self, name: str, description: Any) -> str:
        """Return the id that tells who a topic is. Raises SetupError when the brokers give none.

        Brokers without ids say zero of each, and a recreated topic would be taken for the old one.
        """
        if description.topicId().equals(self._kafka("common.Uuid").ZERO_UUID):
            raise SetupError(
                f"Kafka ({self.servers}) gives topic {name} no id; topics have ids since Kafka 2.8",
                remedy="read it from brokers that give ids, such as a newer release with an up-to-date metadata version",
            )
        return str(description.topicId().toString())

    def _descriptions(self, admin: Any, names: Iterable[str]) -> dict[str, Any]:
        wanted = list(names)
        answers = admin.describeTopics(wanted).topicNameValues()
        return {name: self._answer(answers[name], f"topic {name}") for name in wanted}

    def _offsets(
        self, admin: Any, partitions: Sequence[tuple[str, int]], spec: Any
    ) -> dict[str, dict[int, int]]:
        partition = self._kafka("common.TopicPartition")
        keys = {(name, number): partition(name, number) for name, number in partitions}
        answer = admin.listOffsets(dict.fromkeys(keys.values(), spec))
        offsets: dict[str, dict[int, int]] = {}
        for (name, number), key in keys.items():
            info = self._answer(answer.partitionResult(key), f"topic {name}")
            offsets.setdefault(name, {})[number] = int(info.offset())
        return offsets

    def _answer(self, future: Any, what: str) -> Any:
        """Return what a KafkaFuture comes to; the client itself gives up in time.

        Raises SetupError for a topic that is not there or a refusal, and ServiceAway without an answer.
        """
        from py4j.protocol import Py4JJavaError

        try:
            return future.get()
        except Py4JJavaError as error:
            known_causes = classify(error)
            if Cause.TOPIC_GONE in known_causes:
                raise SetupError(
                    f"Kafka ({self.servers}) has no {what}",
                    remedy="create it, or correct the pipeline's sources",
                ) from error
            if refused := known_causes.get(Cause.KAFKA_REFUSED):
                raise SetupError(
                    f"Kafka ({self.servers}) refuses: {_short(refused)}",
                    remedy=SEE_RIGHTS,
                ) from error
            raise ServiceAway(
                f"Kafka ({self.servers}) gave no answer about {what}: {_short(_cause(error))}",
                remedy="check that it is running and that SLUICE_KAFKA is right, then run again",
            ) from error

    def _client(self, settings: Mapping[str, str]) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return self._kafka("clients.admin.AdminClient").create(settings)
        except Py4JJavaError as error:
            raise SetupError(
                f"Kafka's client can't be made for {self.servers}: {_cause(error).partition(': ')[2]}",
                remedy="correct SLUICE_KAFKA, or the file SLUICE_KAFKA_PROPERTIES",
            ) from error

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        each = self.properties.get("request.timeout.ms", str(PATIENCE_MS))
        settings = {
            "request.timeout.ms": each,
            "default.api.timeout.ms": each,  # Kafka refuses a whole that is less than one try
            **self.properties,
            "bootstrap.servers": self.servers,
        }
        admin = self._client(settings)
        try:
            yield admin
        finally:
            admin.close()


def _cause(error: Exception) -> str:
    """Return the first line of what made Kafka's client fail, without what only hands it on."""
    lines = list(causes(error))
    return (lines[1:] or lines)[0]


def _short(line: str) -> str:
    """Leave out the package of the class that a Java exception's line begins with."""
    return re.sub(r"^(?:[a-z]\w*\.)+", "", line)


def open_cluster(spark: SparkSession, settings: Settings, pipeline: str) -> Cluster:
    """Return the cluster that the settings name, not asked for anything yet.

    Raises SetupError when no broker is named, or when the properties are not right.
    """
    if settings.kafka is None:
        raise SetupError(
            f"Pipeline {pipeline} reads topics, and no broker is named",
            remedy="set SLUICE_KAFKA=host:port, and SLUICE_KAFKA_PROPERTIES where it asks for TLS or a password",
        )
    return Cluster(servers=settings.kafka, properties=_properties(settings, spark), spark=spark)


def _properties(settings: Settings, spark: SparkSession) -> dict[str, str]:
    """Read the user's file of properties, as Java reads it; empty when none is named.

    Raises SetupError for a property that is not about how to reach the brokers.
    """
    if settings.kafka_properties is None:
        return {}
    properties = _loaded(settings.kafka_properties, spark)
    if refused := sorted(name for name in properties if not (name.startswith(_PREFIXES) or name in _NAMES)):
        raise SetupError(
            f"{settings.kafka_properties} sets {', '.join(refused)}, which is not about how to reach the brokers",
            remedy="leave it out: SLUICE_KAFKA names the servers, and the ledger decides what is read",
        )
    return properties


def _loaded(path: Path, spark: SparkSession) -> dict[str, str]:
    from pyspark.errors import IllegalArgumentException

    file = java_class(spark, "java.io.FileReader")(str(path))
    try:
        read = java_class(spark, "java.util.Properties")()
        read.load(file)
    except IllegalArgumentException as error:
        raise SetupError(
            f"{path} can't be read as Java's properties: {in_short(error)}",
            remedy="a backslash is written \\\\ in it, as in a password",
        ) from error
    finally:
        file.close()
    # A Windows editor begins a file with a mark, which Java takes for a part of the first name.
    return {str(name).removeprefix("\ufeff"): str(read[name]) for name in read.keySet().toArray()}


def gaps(now: Mapping[str, Topic], reached: Sequence[Reached]) -> list[Gap]:
    """Return what Kafka no longer has of what comes next, in the topics that are read.

    The first records of a partition that was added to a topic which the pipeline has begun with come next,
    too.
    """
    missing = []
    for one in (*reached, *_not_begun(now, reached)):
        topic = now.get(one.topic)
        if topic is None:
            continue
        if topic.topic_id != one.topic_id:
            end = None
        elif topic.earliest[one.partition] > one.reached:
            end = topic.earliest[one.partition]
        else:
            continue
        missing.append(
            Gap(
                topic=one.topic,
                topic_id=one.topic_id,
                partition=one.partition,
                start=one.reached,
                end=end,
            )
        )
    return missing


def _not_begun(now: Mapping[str, Topic], reached: Sequence[Reached]) -> list[Reached]:
    """Return the partitions that only Kafka knows of, in topics of which others are known."""
    topics = {one.topic_id for one in reached}
    partitions = {(one.topic_id, one.partition) for one in reached}
    known = [name for name, topic in now.items() if topic.topic_id in topics]
    return [one for one in from_the_first(now, known) if (one.topic_id, one.partition) not in partitions]


def from_the_first(now: Mapping[str, Topic], topics: Iterable[str]) -> list[Reached]:
    """Return all partitions of these topics, as if nothing was read of them."""
    return [
        Reached(topic=name, topic_id=now[name].topic_id, partition=partition, reached=0)
        for name in topics
        for partition in now[name].earliest
    ]


def still_there(now: Mapping[str, Topic], read: Sequence[Range]) -> tuple[list[Range], list[str]]:
    """Return what Kafka still has of ranges that were read, and a sentence for each that it has not all of."""
    remaining, lacking = [], []
    for one in read:
        topic = now.get(one.topic)
        if topic is None:
            lacking.append(f"{one.uri} is of a topic that is no longer declared")
            continue
        if topic.topic_id != one.topic_id:
            lacking.append(f"{one.uri} is gone: its topic was deleted and recreated")
            continue
        start = min(max(one.start, topic.earliest[one.partition]), one.end)
        end = max(min(one.end, topic.latest[one.partition]), start)
        rest = replace(one, start=start, end=end)
        if rest != one:
            lacking.append(f"{one.uri} is gone" if rest.empty else f"of {one.uri} only {rest.uri} is there")
        if not rest.empty:
            remaining.append(rest)
    return remaining, lacking
