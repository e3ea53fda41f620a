"""Topics as any other program of a user's would fill and change them, and what must become of each record.

The fate of a record is decided when it is made. Kafka is asked through its own Java client; no code of `etl` makes
or judges a record.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from etl.common.settings import Settings
from etl.runs.workspace import Workspace
from tests.support import oracle
from tests.support.data.orders import MALFORMED
from tests.support.home import Home
from tests.support.oracle import Row, Rows
from tests.support.waiting import until

NAME = "orders"
COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("amount", pa.float64()),
        ("key", pa.string()),
        ("origin", pa.string()),
        ("topic", pa.string()),
        ("part", pa.int32()),
        ("place", pa.int64()),
        ("gone", pa.bool_()),
    ]
)
NEGATIVE = "amount is not negative"
DECLARATION = """
from etl.pipeline import Append, Kafka, Pipeline

def plain(df):
    from pyspark.sql import functions as F

    return df.select(
        "id", "amount", F.col("_key").cast("string").alias("key"),
        F.expr("cast(filter(_headers, one -> one.key = 'origin')[0].value as string)").alias("origin"),
        F.col("_topic").alias("topic"), F.col("_partition").alias("part"), F.col("_offset").alias("place"),
        F.col("_tombstone").alias("gone"),
    )

PIPELINE = Pipeline(
    name="orders",
    sources=(Kafka({topics!r}, max_offsets={max_offsets}),),
    schema="id bigint, amount double",
    transform=plain,
    suite="orders",
    sink=Append(),
    max_quarantine_share=1.0,
    max_fewer_share=1.0,
)
"""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record, which knows its fate."""

    value: str | None
    partition: int = 0
    key: str | None = None
    origin: str | None = None  # a header
    malformed: bool = False


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A record where Kafka has it."""

    record: Record
    topic: str
    offset: int

    @property
    def row(self) -> Row:
        of = self.record
        value = json.loads(of.value) if of.value is not None else {}
        amount = value.get("amount")
        return (
            value.get("id"),
            None if amount is None else oracle.plain(float(amount)),
            of.key,
            of.origin,
            self.topic,
            of.partition,
            self.offset,
            of.value is None,
        )

    @property
    def held(self) -> bool:
        value = json.loads(self.record.value or "{}") if not self.record.malformed else {}
        return self.record.malformed or (value.get("amount") or 0) < 0

    @property
    def row_held(self) -> Row:
        """Return a held row as PostgreSQL's quarantine has it: reasons, source path, raw record, row."""
        if self.record.malformed:
            path = f"kafka://{self.topic}/{self.record.partition}/{self.offset}"
            return ((MALFORMED,), path, self.record.value, None)
        return ((NEGATIVE,), None, None, self.row)


def orders(start: int, count: int, *, partitions: int = 2, negative: Iterable[int] = ()) -> list[Record]:
    """Orders of their own numbers, dealt out to the partitions."""
    bad = set(negative)
    return [
        Record(
            value=json.dumps({"id": number, "amount": -1.5 if number in bad else number / 4}),
            partition=number % partitions,
            key=f"k{number % 3}",
            origin="shop" if number % 2 else None,
        )
        for number in range(start, start + count)
    ]


@dataclass(kw_only=True)
class Topics:
    """The topics of one test, each with a name that no other test has."""

    spark: SparkSession
    servers: str
    sent: list[Sent] = field(default_factory=list)
    ends: Counter[tuple[str, int]] = field(default_factory=Counter)  # the next offset
    suffix: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def clients(self) -> Any:
        jvm: Any = self.spark.sparkContext._jvm
        return jvm.org.apache.kafka

    @contextmanager
    def admin(self) -> Iterator[Any]:
        admin = self.clients.clients.admin.AdminClient.create({"bootstrap.servers": self.servers})
        try:
            yield admin
        finally:
            admin.close()

    def create(self, name: str = "orders", partitions: int = 2) -> str:
        """Create a topic; return its whole name."""
        whole = f"{name}.{self.suffix}"
        with self.admin() as admin:
            admin.createTopics([self.clients.clients.admin.NewTopic(whole, partitions, 1)]).all().get()
        return whole

    def widen(self, topic: str, partitions: int) -> None:
        with self.admin() as admin:
            wider = self.clients.clients.admin.NewPartitions.increaseTo(partitions)
            admin.createPartitions({topic: wider}).all().get()

    def compact(self, topic: str) -> None:
        """Keep the newest record of each key alone, from now on."""
        kafka = self.clients
        clients, config = kafka.clients.admin, kafka.common.config.ConfigResource
        entry = clients.ConfigEntry("cleanup.policy", "compact")
        change = clients.AlterConfigOp(entry, clients.AlterConfigOp.OpType.SET)
        with self.admin() as admin:
            admin.incrementalAlterConfigs({config(config.Type.TOPIC, topic): [change]}).all().get()

    def remake(self, topic: str, partitions: int = 2) -> None:
        """Delete it and make it anew: the same name, another id, no record."""
        with self.admin() as admin:
            admin.deleteTopics([topic]).all().get()
            new = self.clients.clients.admin.NewTopic(topic, partitions, 1)
            until(
                lambda: topic not in admin.listTopics().names().get(),
                f"the end of {topic}",
                patience=30,
                every=0.01,
            )
            admin.createTopics([new]).all().get()
            until(
                lambda: topic in admin.listTopics().names().get(),
                f"the new {topic}",
                patience=30,
                every=0.01,
            )
        for number in range(partitions):
            self.ends[topic, number] = 0

    def age(self, topic: str, partition: int, before: int) -> None:
        """Let all records before an offset go, as retention does."""
        kafka = self.clients
        with self.admin() as admin:
            until = self._before(before)
            admin.deleteRecords({kafka.common.TopicPartition(topic, partition): until}).all().get()

    def _before(self, offset: int) -> Any:
        """RecordsToDelete.beforeOffset(offset): py4j can't tell it from the method of an instance of that name."""
        gateway: Any = self.spark.sparkContext._gateway
        jvm = gateway.jvm
        kinds, values = gateway.new_array(jvm.java.lang.Class, 1), gateway.new_array(jvm.java.lang.Object, 1)
        kinds[0], values[0] = jvm.java.lang.Long.TYPE, jvm.java.lang.Long.valueOf(offset)
        named = jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        return named.getMethod("beforeOffset", kinds).invoke(None, values)

    def groups(self) -> set[str]:
        with self.admin() as admin:
            return {str(one.groupId()) for one in admin.listConsumerGroups().all().get()}

    def send(self, topic: str, records: Sequence[Record]) -> list[Sent]:
        """Send the records; each partition gets them in their order."""
        rows = [
            (
                topic,
                one.partition,
                one.key and one.key.encode(),
                None if one.value is None else one.value.encode(),
                [("origin", one.origin.encode())] if one.origin else None,
            )
            for one in records
        ]
        kind = (
            "topic string, partition int, key binary, value binary,"
            " headers array<struct<key: string, value: binary>>"
        )
        frame = self.spark.createDataFrame(rows, kind).coalesce(1)
        frame.write.format("kafka").options(
            **{"kafka.bootstrap.servers": self.servers, "includeHeaders": "true"}
        ).save()
        found = []
        for one in records:
            found.append(Sent(record=one, topic=topic, offset=self.ends[topic, one.partition]))
            self.ends[topic, one.partition] += 1
        self.sent += found
        return found


def declare(home: Home, *topics: str, max_offsets: int | None = 20) -> None:
    home.columns = COLUMNS
    home.declare(text=DECLARATION.format(topics=topics, max_offsets=max_offsets))


def changed(home: Home, **changes: object) -> Home:
    """Return the same place with other settings."""
    settings = Settings.model_validate(home.place.settings.model_dump() | changes)
    return replace(home, place=Workspace(settings=settings, services=home.place.services))


def assert_holds(home: Home, sent: Sequence[Sent]) -> None:
    """Both sinks hold exactly these records, each with its own place, and agree on every delivery."""
    eyes = home.reader()
    wanted: Rows = Counter(one.row for one in sent if not one.held)
    held: Rows = Counter(one.row_held for one in sent if one.held)
    found = {
        "PostgreSQL": (eyes.in_postgres(system=()), wanted),
        "Parquet": (eyes.on_lake(system=()), wanted),
        "held": (Counter(row[:4] for row in eyes.held_in_postgres().elements()), held),
    }
    wrong = {name: oracle.difference(*both) for name, both in found.items()}
    assert not any(wrong.values()), wrong
    assert eyes.held_on_lake().total() == held.total()
    home.assert_one_history()


def ranges(home: Home, topic: str) -> list[tuple[Any, ...]]:
    """Return the ranges that the ledger has: partition, start and end, in the order of the commits."""
    return home.ask(
        "SELECT r.partition, r.start_offset, r.end_offset FROM sluice.delivery_range r JOIN sluice.delivery d"
        " USING (delivery_id) WHERE r.topic = %s ORDER BY r.partition, d.commit_seq",
        topic,
    )
