"""The classes that declare a pipeline: plain values, built without pyspark.

Building one checks nothing. The loader finds every mistake of a declaration at once, by field, so that a person
corrects it in one go.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from etl.common.wording import pluralize
from etl.pipeline.patterns import inferred_format
from etl.pipeline.thresholds import Freshness, Volume

if TYPE_CHECKING:
    from pyspark.sql import Column

PartitionKind = Literal["identity", "hour", "day", "month"]
OutputMode = Literal["append", "update", "complete"]
Unreadable = Literal["stop", "hold"]
Unknown = Literal["report", "keep", "hold"]


# What a micro-batch takes of all those sources together that declare no limit (decisions/0047).
BATCH_BYTES = 1 << 30  # of files
BATCH_OFFSETS = 1_000_000  # of topics


@dataclass(frozen=True, kw_only=True)
class Files:
    """Landed files that stay as they are once they are there; each is read once."""

    pattern: str = field(kw_only=False)  # below the landing, or absolute, or s3a://…; `**` = at any depth
    format: str | None = None  # "json", "json-array", "csv", "parquet" or "text"; None: from the suffix
    stream: str | None = None  # one of the pipeline's `streams`; None: the one of its `schema`
    path: str | None = None  # one more column: the path of the record's file below the landing
    header: bool = True  # CSV: the first line names the columns, and is checked
    max_files: int | None = None  # of one micro-batch; with `max_bytes` None as well: by BATCH_BYTES
    max_bytes: int | None = None  # of one micro-batch; Spark takes one of the two limits
    # How long after the end of its interval, which its path names, a folder is still listed by runs; None: always.
    open_for: dt.timedelta | None = None
    options: Mapping[str, str] = field(default_factory=dict)  # of Spark's reader; see source_checks
    replayable = True
    after_crash = ""

    @property
    def kind(self) -> str:
        """Return the format in force, such as "json"; empty when nothing tells it."""
        return self.format or inferred_format(self.pattern) or ""

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the patterns of the landed files that the source means."""
        return (self.pattern,)

    @property
    def named(self) -> str:
        """Return what messages call the source."""
        return self.pattern


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """Topics; each record is read once. A topic that is added is read from its first record on.

    The transform has, beside the schema's columns, what is in `RECORD` of its record.
    """

    topics: tuple[str, ...] = field(kw_only=False)  # by their names
    format: str = "json"  # of the values: "json" or "text"
    stream: str | None = None  # one of the pipeline's `streams`; None: the one of its `schema`
    max_offsets: int | None = None  # of one micro-batch, over all partitions; None: by BATCH_OFFSETS
    options: Mapping[str, str] = field(default_factory=dict)  # of Spark's reader; see source_checks
    replayable = True
    after_crash = ""
    patterns: ClassVar[tuple[str, ...]] = ()  # it means no landed files
    open_for: ClassVar[None] = None  # nor any folder

    @property
    def kind(self) -> str:
        """Return the format in force: "json" or "text"."""
        return self.format

    @property
    def named(self) -> str:
        """Return what messages call the source."""
        return ", ".join(self.topics)


# What a record of Kafka is beside its value, as columns that the transform may take; Spark DDL.
RECORD = (
    "_key binary, _headers array<struct<key: string, value: binary>>, _topic string, _partition int,"
    " _offset bigint, _timestamp timestamp, _tombstone boolean"
)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Rows that Spark makes while a run is up, for trying things out: of the schema `RATE`, `value` counts from 0.

    Not replayable: each run counts from 0 again, in a stream of its own.
    """

    rows_per_second: int = 1
    replayable = False
    after_crash = ": each run counts from 0, so values that were delivered come once more"
    patterns: ClassVar[tuple[str, ...]] = ()  # it means no landed files
    open_for: ClassVar[None] = None  # nor any folder
    stream = None  # it is all that its pipeline reads
    kind = ""  # its rows have their types already

    @property
    def named(self) -> str:
        """Return what messages call the source."""
        return f"rate of {pluralize(self.rows_per_second, 'row')} a second"


# What Spark's rate source makes; Spark DDL.
RATE = "timestamp timestamp, value bigint"


@dataclass(frozen=True, kw_only=True)
class Socket:
    """Lines that a TCP server sends while a run is up, in UTF-8; for trying things out.

    Not replayable: what was sent and not delivered when a run dies is gone, unless the server sends it again.
    """

    host: str
    port: int
    format: str = "json"  # of a line: "json", "csv" or "text"
    options: Mapping[str, str] = field(default_factory=dict)  # of Spark's reader; see source_checks
    replayable = False
    after_crash = (
        ", and that only if all is sent again: what was sent and not delivered is lost otherwise, and what was delivered"
        " comes twice"
    )
    patterns: ClassVar[tuple[str, ...]] = ()  # it means no landed files
    open_for: ClassVar[None] = None  # nor any folder
    stream = None  # it is all that its pipeline reads

    @property
    def kind(self) -> str:
        """Return the format in force: "json", "csv" or "text"."""
        return self.format

    @property
    def uri(self) -> str:
        return f"socket://{self.host}:{self.port}"

    @property
    def named(self) -> str:
        """Return what messages call the source."""
        return self.uri


DeclaredSource = Files | Kafka | Rate | Socket


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Records of another schema, which the transform takes as a streaming DataFrame of their own."""

    schema: str  # Spark DDL of its sources
    late: str | None = None  # the column of event time: what is behind the watermark is held
    not_after: Mapping[str, dt.timedelta | str] = field(default_factory=dict)  # as Pipeline.not_after

    @property
    def holds_good_records(self) -> bool:
        """Tell whether records are held that are not malformed."""
        return self.late is not None or bool(self.not_after)


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """A small table that the transform joins; its key is unique, or the run stops."""

    pattern: str = field(kw_only=False)
    schema: str  # Spark DDL
    key: tuple[str, ...]  # columns that identify a row
    format: str | None = None
    header: bool = True
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return the format in force, such as "json"; empty when nothing tells it."""
        return self.format or inferred_format(self.pattern) or ""


@dataclass(frozen=True, kw_only=True)
class Model:
    """An isolation forest that the transform scores rows with; `sluice train` makes its versions."""

    trained_on: str = field(kw_only=False)  # the pipeline whose delivered rows it learns from
    features: tuple[str, ...]  # their columns of numbers, in the order in which `score` takes them
    flagged: float = 0.01  # share of the rows it learns from that count as anomalies
    label: str | None = None  # their boolean column that tells anomalies; for the report alone
    rows: int = 100_000  # of more of them, so many are drawn
    trees: int = 100
    seed: int = 1  # of what is drawn


class Scorer(Protocol):
    """Scores rows with the version of a model that was in force when the batch began; a transform takes it."""

    @property
    def version(self) -> int:
        """Return the model's version, from 1."""
        ...

    @property
    def threshold(self) -> float:
        """Return the score above which a row counts as an anomaly."""
        ...

    def score(self, *columns: str | Column) -> Column:
        """Return a score from 0 to 1, the higher the more of an anomaly; it takes one column for each feature."""
        ...


@dataclass(frozen=True, kw_only=True)
class Partition:
    """How the lake's files are split: by a column's value or by its hour, day or month."""

    kind: PartitionKind
    column: str


def identity(column: str) -> Partition:
    """Split the lake's files into one folder for each value of `column`."""
    return Partition(kind="identity", column=column)


def hour(column: str) -> Partition:
    """Split the lake's files into one folder for each hour (UTC) of the timestamp `column`."""
    return Partition(kind="hour", column=column)


def day(column: str) -> Partition:
    """Split the lake's files into one folder for each day (UTC) of `column`."""
    return Partition(kind="day", column=column)


def month(column: str) -> Partition:
    """Split the lake's files into one folder for each month (UTC) of `column`."""
    return Partition(kind="month", column=column)


@dataclass(frozen=True, kw_only=True)
class Append:
    """Every row is new: inserted in the warehouse, appended on the lake."""

    releasable: ClassVar[bool] = True  # a held row can be added to what the table has
    partition_by: Partition | None = None
    table: str | None = None  # "schema.table"; None: warehouse.<pipeline>


@dataclass(frozen=True, kw_only=True)
class Upsert:
    """One row a key: the newest by `newest`, then by commit order; the lake keeps every change."""

    releasable: ClassVar[bool] = True
    keys: tuple[str, ...]
    newest: str  # the column that says which of two rows is newer
    partition_by: Partition | None = None
    table: str | None = None


@dataclass(frozen=True, kw_only=True)
class Replace:
    """Each batch is the whole table."""

    releasable: ClassVar[bool] = False  # a batch is the whole table
    partition_by: Partition | None = None
    table: str | None = None


Sink = Append | Upsert | Replace


@dataclass(frozen=True, kw_only=True)
class Airflow:
    """What Airflow's DAGs and tasks of a pipeline take beside its schedule, each by Airflow's own name and default."""

    time_zone: str = "UTC"  # of the schedule's fields and the days of a preset, such as "Europe/Berlin"
    queue: str | None = None  # whose workers run its tasks
    executor: str | None = None  # of several that Airflow has
    # A function makes it where its values are of a library, such as a pod's: only Airflow calls it.
    executor_config: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None
    pool: str | None = None  # one that others share; None: the pipeline's own, of one slot
    pool_slots: int = 1  # that a run takes of a shared pool
    priority_weight: int = 1
    execution_timeout: dt.timedelta | None = None  # of each try
    # Who may do what with its DAG, by role; for an auth manager that heeds it, such as FAB's.
    access_control: Mapping[str, Any] | None = None
    replays_access_control: Mapping[str, Any] | None = (
        None  # of its DAG of replays and releases; None: the same
    )
    # A run that ends with exit 3 or 4 waits for a person's answer in Airflow, for so long; then it fails. None: it fails at
    # once.
    answer_within: dt.timedelta | None = dt.timedelta(days=1)
    # The users who alone decide on stopped batches, and release and discard held rows, by name; nobody named: whoever has
    # Airflow's own rights to. A mapping has the id of each, where the auth manager's ids are not the names.
    deciders: tuple[str, ...] | Mapping[str, str] = ()

    @property
    def ids_of_deciders(self) -> Mapping[str, str]:
        """Return the id of each decider by name."""
        named = self.deciders
        return dict(named) if isinstance(named, Mapping) else {name: name for name in named}


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What to read, what to make of it, how to judge it, and where it goes. Owns its table alone."""

    name: str
    # All Files or all Kafka; unioned stream by stream, in the order in which the transform takes them. Or one
    # Rate or Socket.
    sources: tuple[Files, ...] | tuple[Kafka, ...] | tuple[Rate] | tuple[Socket]
    schema: str  # Spark DDL of the sources
    transform: Callable[..., Any]  # (DataFrame, *, <streams>, <lookups>, <models>); imports pyspark inside
    sink: Sink
    streams: Mapping[str, Stream] = field(default_factory=dict)  # beside the one of `schema`
    lookups: Mapping[str, Lookup] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=dict)  # that rows are scored with
    suite: str | None = None  # <suites folder>/<suite>.json; None: every row passes
    # Cron or a preset such as "@daily"; or a function, which Airflow alone calls, that returns a timetable or any other
    # schedule of Airflow's. None: only by hand.
    schedule: str | Callable[[], Any] | None = None
    follow: bool = False  # its DAG keeps a run up, instead of starting one on a schedule
    every: dt.timedelta = dt.timedelta(seconds=10)  # how often a run that stays up looks for new files
    # What reruns and backfills go by: a timestamp column, or a part of paths such as "dt={interval:%Y-%m-%d}".
    interval: str | None = None
    # Of the first interval. Where intervals are of paths, the stream leaves out what is before.
    start: dt.date | dt.datetime | None = None
    # Spark's, of a transform with state; None: append, but for an aggregate update into an upsert sink and
    # complete into a replace sink.
    output_mode: OutputMode | None = None
    late: str | None = None  # the schema's column of event time: what is behind the watermark is held
    # Columns of the schema that are moments, each with how far ahead of the batch's clock it may be, or with the column
    # that it may not be after: what is ahead is held, before a watermark sees it.
    not_after: Mapping[str, dt.timedelta | str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()  # columns of the output whose metrics are kept with each batch
    max_quarantine_share: float = 0.05  # of a batch's records, from 0 to 1; beyond it the batch stops
    # Of the rows that a replay replaces, from 0 to 1: where it delivers fewer by more, it changes nothing and asks.
    max_fewer_share: float = 0.05
    # Where a file can't be read to its end: "stop"; or "hold" what is missing of it, as one record, and deliver the rest.
    unreadable: Unreadable = "stop"
    # Where a record has a member, or a file a column, that the schema does not name: "report" it with the delivery,
    # "keep" it in one more column `_unknown`, as JSON, or "hold" the record. Parquet is told by file: docs/reading.md.
    unknown: Unknown = "report"
    alert_quarantine_share: float | None = None  # of a run's records; beyond it an alert is sent
    alert_consumer_lag: dt.timedelta | None = (
        None  # of a consumer, behind the newest delivery; beyond it likewise
    )
    deadline: dt.timedelta | None = None  # for a run, from when it is queued; missing it sends an alert
    freshness: Freshness | None = None  # how long ago its last delivery may be; beyond it an alert is sent
    volume: Volume | None = None  # how many rows a day may bring, by the same days before; likewise
    alert_repeat: dt.timedelta | None = dt.timedelta(
        hours=4
    )  # of an alert that nobody has taken up; None: never
    retries: int = 3  # of a run that crashed: an outage is waited for; unless `follow` keeps it up
    retry_delay: dt.timedelta = dt.timedelta(minutes=1)  # before the first; then twice as long each time
    owner: str = "sluice"  # who is asked about it, as Airflow shows
    tags: tuple[str, ...] = ()  # Airflow's, beside "sluice"
    airflow: Airflow = Airflow()  # where and when Airflow runs its tasks
    file: Path | None = field(default=None, compare=False)  # set by the loader: where it is declared

    @property
    def table(self) -> str:
        """Return the table's name, `schema.table`, in PostgreSQL and in the catalog alike."""
        return self.sink.table or f"warehouse.{self.name}"

    @property
    def quoted_table(self) -> str:
        """Return the table's name as SQL takes it, whatever words it is made of; no part of it has a quote."""
        return ".".join(f'"{part}"' for part in self.table.split("."))

    @property
    def table_schema(self) -> str:
        """Return the schema of the table in PostgreSQL, which is the catalog's namespace."""
        return self.table.rpartition(".")[0]

    @property
    def table_name(self) -> str:
        """Return the table's name without its schema."""
        return self.table.rpartition(".")[2]

    @property
    def quarantine_table(self) -> str:
        """Return the catalog's name of the table that holds the rejected rows, beside the pipeline's own."""
        return f"{self.table}_quarantine"

    @property
    def reads(self) -> str:
        """Return what messages call all that is read."""
        return ", ".join(one.named for one in self.sources)

    @property
    def replayable(self) -> bool:
        """Tell whether what was read can be read again, after a crash as well."""
        return all(one.replayable for one in self.sources)

    @property
    def has_replays_dag(self) -> bool:
        """Tell whether Airflow has a DAG for the pipeline's replays and releases.

        It has none where no row can be released: the sink is replaced then, and most keep state, of which no
        batch can be replayed.
        """
        return self.sink.releasable

    @property
    def names_partitions(self) -> bool:
        """Tell whether Airflow is told which hours, days or months a delivery touched.

        Where a batch is the whole table, each touches all of them.
        """
        by = self.sink.partition_by
        return by is not None and by.kind != "identity" and self.sink.releasable

    @property
    def all_streams(self) -> Mapping[str | None, Stream]:
        """Return every kind of record that is read, by its name; the one of `schema` has none."""
        main: dict[str | None, Stream] = {
            None: Stream(schema=self.schema, late=self.late, not_after=self.not_after)
        }
        return main | dict(self.streams)

    @property
    def tells_late(self) -> bool:
        """Tell whether records behind the watermark are held, of any stream."""
        return any(kind.late is not None for kind in self.all_streams.values())

    @property
    def bounds_moments(self) -> bool:
        """Tell whether records are held by the clock of their batch, of any stream."""
        return any(kind.not_after for kind in self.all_streams.values())


def described(noun: Any) -> dict[str, Any]:
    """Return the fields of a part of a declaration as JSON values."""
    values = {}
    for name in noun.__dataclass_fields__:
        value = getattr(noun, name)
        if isinstance(value, Partition):
            value = described(value)
        elif isinstance(value, Mapping):
            value = dict(sorted(value.items()))
        elif isinstance(value, tuple):
            value = list(value)
        values[name] = value
    return values
