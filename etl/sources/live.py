"""Reads a source that can't be read again: its query passes the records on as they come.

The transform is applied to each micro-batch within foreachBatch, because the malformed records of a batch can be read
nowhere else. Within the query Spark computes a micro-batch again as often as it is asked, and always the same one: a
socket's lines stay in the driver's memory until their batch is marked as done.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etl.common.errors import SetupError
from etl.common.outcome import in_short
from etl.common.record_columns import SOURCE_PATH
from etl.pipeline import Rate, Socket
from etl.sources.base import Source
from etl.sources.parsing import Reading, Records, csv_rows, json_rows, none_malformed, not_blank, only_column
from etl.spark.jvm import java_class
from etl.spark.state_plan import SOURCE_NUMBER, operators

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class LiveSource(Source):
    """What a run reads, where it can't be read again."""

    batch: DataFrame | None = None  # the records of a micro-batch; None: it is of none

    @property
    @abstractmethod
    def queried(self) -> DataFrame:
        """Return the records as they come, streaming. Nobody is connected to yet."""

    @abstractmethod
    def _records(self, frame: DataFrame, reading: Reading) -> DataFrame:
        """Return the rows of records as they came: the schema's columns and what is `reading`'s."""

    @property
    def transforms_in_query(self) -> bool:
        return False

    def of_batch(self, frame: DataFrame) -> tuple[Source, DataFrame]:
        bound = replace(self, batch=frame)
        return bound, bound.reread((), broken=())

    def _stream(self) -> DataFrame:
        """Return the transform's output as a stream, which is asked for its plan alone.

        Raises SetupError for a transform that keeps state, or that Spark can't run as a stream.
        """
        frame = self._put_out({None: self._records(self.queried, self.reading())})
        _refuse_more_than_rows(self.pipeline.name, frame)
        return frame

    def _static(self, uris: Iterable[str], broken: Iterable[str], *, malformed: bool = False) -> Records:  # noqa: ARG002
        assert self.batch is not None, "such a source has nothing outside of a micro-batch"
        return {None: self._records(self.batch, self.reading(malformed=malformed))}


@dataclass(frozen=True, kw_only=True)
class RateSource(LiveSource):
    """What a run reads, where it is rows that Spark makes."""

    declared: Rate

    @property
    def queried(self) -> DataFrame:
        return _read(self.spark, "rate", rowsPerSecond=self.declared.rows_per_second)

    def _records(self, frame: DataFrame, reading: Reading) -> DataFrame:
        from pyspark.sql import functions as F

        return frame.select("timestamp", "value", *none_malformed(reading), F.lit("rate").alias(SOURCE_PATH))


@dataclass(frozen=True, kw_only=True)
class SocketSource(LiveSource):
    """What a run reads, where it is lines that a TCP server sends."""

    declared: Socket

    @property
    def queried(self) -> DataFrame:
        return _read(self.spark, "socket", host=self.declared.host, port=self.declared.port)

    def _records(self, frame: DataFrame, reading: Reading) -> DataFrame:
        from pyspark.sql import functions as F

        source, schema = self.declared, self.fields[None]
        lines = frame.select("value", F.lit(source.uri).alias(SOURCE_PATH))
        if source.kind == "text":
            line = F.col("value").alias(only_column(source.uri, schema))
            return lines.select(line, *none_malformed(reading), SOURCE_PATH)
        if source.kind == "csv":
            return csv_rows(not_blank(lines), schema, source.options, reading)
        return json_rows(not_blank(lines), schema, reading)

    def exhausted(self) -> bool:
        """Tell whether the server has closed the connection.

        Spark connects with its first batch; when the server has closed it, Spark's thread for it ends.
        """
        threads = java_class(self.spark, "java.lang.Thread").getAllStackTraces().keySet().toString()
        return f"TextSocketSource({self.declared.host}, {self.declared.port})" not in threads


def _read(spark: SparkSession, kind: str, **options: Any) -> DataFrame:
    return spark.readStream.format(kind).options(**{SOURCE_NUMBER: "0"}, **options).load()


def _refuse_more_than_rows(pipeline: str, frame: DataFrame) -> None:
    """Raise SetupError for a transform that makes of each batch what it would not make of the stream.

    Such a one keeps state, or Spark can't run it as a stream.
    """
    from pyspark.errors import AnalysisException

    if state := operators(frame):
        raise SetupError(
            f"The transform of {pipeline} keeps state between batches ({'; '.join(state)}), and its source can't be read"
            " again: the state could not be rebuilt",
            remedy="land files, or use a topic of Kafka, for what is to be aggregated, joined or deduplicated",
        )
    spark = frame.sparkSession
    checker = java_class(spark, "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
    append = java_class(spark, "org.apache.spark.sql.streaming.OutputMode").Append()
    try:
        checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), append)
    except AnalysisException as error:
        raise SetupError(
            f"Spark can't run the transform of {pipeline} as a stream: {in_short(error)}",
            remedy="change the transform",
        ) from error
