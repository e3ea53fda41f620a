"""The kind of sources that are topics of Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl.common.errors import SetupError
from etl.common.settings import Settings
from etl.ledger.offsets import Range
from etl.pipeline import Kafka
from etl.sources.kinds.base import SourceKind
from etl.spark.checkpoint.topics import TopicCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.sources.kafka.source import KafkaSource


@dataclass(frozen=True, kw_only=True)
class KafkaKind(SourceKind["KafkaSource", TopicCheckpoint]):
    """Topics of Kafka, each of which has an order: what is read is told by offsets."""

    declared: Sequence[Kafka]

    @property
    def checkpoint(self) -> type[TopicCheckpoint]:
        return TopicCheckpoint

    def source(self, settings: Settings, paths: Sequence[str], **common: Any) -> KafkaSource:  # noqa: ARG002
        from etl.sources.kafka.cluster import open_cluster
        from etl.sources.kafka.source import KafkaSource

        cluster = open_cluster(common["spark"], settings, self.pipeline.name)
        return KafkaSource(**common, declared=self.declared, cluster=cluster)

    def still_there(
        self, spark: SparkSession, settings: Settings, ranges: Sequence[Range]
    ) -> tuple[list[Range], list[str]]:
        from etl.sources.kafka.cluster import open_cluster, still_there

        read = {one.topic for one in ranges}
        cluster = open_cluster(spark, settings, self.pipeline.name)
        now = cluster.topics([name for one in self.declared for name in one.topics if name in read])
        return still_there(now, ranges)

    def raise_read_error(self, errors: Sequence[BaseException], retry: str) -> None:
        from etl.sources.kafka.read_errors import raise_read_error

        raise_read_error(self.pipeline.name, errors, retry)

    def refuse_taken_twice(self, state: Sequence[str]) -> None:  # noqa: ARG002
        raise SetupError(
            f"The transform of {self.pipeline.name} takes its topics more than once: Spark would read each on its own, and"
            " not all to the same end",
            remedy="make several rows of one with explode",
        )
