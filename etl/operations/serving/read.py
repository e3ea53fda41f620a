"""Reads delivered rows: exactly the committed files, pinned to one moment.

A listing of the folder would also find what failed attempts left there. These functions ask the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from etl.common.database import Cursor, transaction
from etl.common.errors import LedgerBehind, SetupError
from etl.common.migrations import migrate
from etl.common.number_ranges import numbers_of
from etl.common.settings import Settings
from etl.common.statements import Statements
from etl.ledger import streams
from etl.ledger.deliveries import LiveDelivery, delivered_files, deliveries_in_force
from etl.pipeline import Pipeline, load_pipeline
from etl.sinks.lake.table import LakeTable
from etl.sinks.modes import mode_of
from etl.spark.frames import parquet

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class CommittedFile:
    """A Parquet file of a live delivery."""

    batch_id: int
    delivery_id: int
    stream: str
    path: str  # s3:// URI
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CommittedFiles:
    """The table's files as of one moment."""

    pipeline: str
    snapshot_id: int | None  # of the Iceberg table; None: it has none yet
    files: Sequence[CommittedFile]

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """What became of a pipeline's table after one of its commits, up to another."""

    after: int  # commit
    to: int  # commit: what comes later is after it
    deliveries: Sequence[int]  # whose rows the table has, in the order of their commits
    replaced: Sequence[int]  # of those up to `after`: whose rows the table had then and has no longer


@dataclass(frozen=True, kw_only=True)
class CommittedState:
    """The ledger and the pointer as one transaction saw them."""

    deliveries: Sequence[LiveDelivery]  # whose rows the table has
    replaced: Mapping[int, int]  # deliveries whose rows it had, to those that took their place
    files: Sequence[CommittedFile]
    current_stream: str | None
    pointer: str | None


def committed_files(workspace: Workspace, pipeline: Pipeline) -> CommittedFiles:
    """Return exactly the files of live deliveries that the table's current snapshot has."""
    now = moment(workspace, pipeline)
    table = LakeTable.of(workspace.lake, pipeline.table)
    snapshot = table.load(now.pointer).current_snapshot_id if now.pointer else None
    return CommittedFiles(pipeline=pipeline.name, snapshot_id=snapshot, files=now.files)


def moment(workspace: Workspace, pipeline: Pipeline) -> CommittedState:
    """Read the ledger and the pointer of the pipeline's table as they are now, in one transaction."""
    dsn = workspace.services.postgres
    migrate(dsn)
    with transaction(dsn, one_snapshot=True) as cursor:
        live = deliveries_in_force(cursor, pipeline.name)
        replaced = dict(STATEMENTS.execute(cursor, "replaced", pipeline=pipeline.name).fetchall())
        in_force = mode_of(pipeline.sink).in_force(live)
        earlier = live[: len(live) - len(in_force)]
        replaced |= {one.delivery_id: in_force[-1].delivery_id for one in earlier}
        stream = streams.current_stream(cursor, pipeline.name)
        return CommittedState(
            deliveries=in_force,
            replaced=replaced,
            files=_files(cursor, pipeline, {one.delivery_id for one in in_force}),
            current_stream=stream.stream_id if stream else None,
            pointer=LakeTable.of(workspace.lake, pipeline.table).pointer(cursor),
        )


def delivered(
    pipeline: str | Pipeline, *, after: int, to: int | None = None, settings: Settings | None = None
) -> Delivered:
    """Ask the ledger what was delivered after commit `after`, up to `to`, by default the newest.

    Commits of a pipeline are numbered from 1, in the order in which they can be seen: who keeps `to` of the last result
    in the place of `after` leaves nothing out, and reads nothing twice. Raises LedgerBehind where PostgreSQL has lost the
    commit `after`, SetupError where there is no commit `to` yet.
    """
    workspace, pipeline = opened(pipeline, settings)
    mode_of(pipeline.sink).refuse_increments(pipeline.name)
    dsn = workspace.services.postgres
    migrate(dsn)
    with transaction(dsn, one_snapshot=True) as cursor:
        found = STATEMENTS.execute(cursor, "newest_commit", pipeline=pipeline.name, commit=after).fetchone()
        newest, known = found or (0, False)
        if newest < after or not known:
            raise LedgerBehind(
                f"Commit {after} of {pipeline.name} was read, and the ledger has no such commit; its newest"
                f" is {newest}: PostgreSQL went back in time",
                remedy="rebuild what you made of this pipeline, from `after=0` on",
            )
        if to is not None and to > newest:
            raise SetupError(
                f"{pipeline.name} has no commit {to}; its newest is {newest}",
                remedy="leave `to` out to read up to the newest",
            )
        to = newest if to is None else to
        STATEMENTS.execute(cursor, "delivered_between", pipeline=pipeline.name, after=after, to=to)
        new = cursor.fetchall()
        STATEMENTS.execute(cursor, "replaced_between", pipeline=pipeline.name, after=after, to=to)
        old = cursor.fetchall()
    return Delivered(after=after, to=to, deliveries=[one for (one,) in new], replaced=[one for (one,) in old])


def _files(cursor: Cursor, pipeline: Pipeline, numbers: Collection[int]) -> list[CommittedFile]:
    return [
        CommittedFile(
            batch_id=one.batch_id,
            delivery_id=one.delivery_id,
            stream=one.stream_id,
            path=one.path,
            rows=one.rows,
            bytes=one.bytes,
        )
        for one in delivered_files(cursor, pipeline.name)
        if one.kind == "data" and one.delivery_id in numbers
    ]


def read(
    spark: SparkSession,
    pipeline: str | Pipeline,
    batches: Iterable[int] | None = None,
    deliveries: Iterable[int | str] | None = None,
    stream: str | None = None,
    settings: Settings | None = None,
    *,
    skip_replaced: bool = False,
) -> DataFrame:
    """Read the delivered rows as of now, however long the frame is used: all, or those of some batches.

    Batch ids start at 0 in each stream; they are those of `stream`, by default the current one. `deliveries` are
    numbers, or ranges such as `"4..7"`, as an asset event has them. One of them that was replaced since is refused, or
    passed over with `skip_replaced`: its rows are now those of the delivery that took its place, which is told by an
    event of its own. `spark` needs S3A and credentials of the AWS chain, as a session of Sluice has them.
    """
    workspace, pipeline = opened(pipeline, settings)
    now = moment(workspace, pipeline)
    if now.pointer is None:
        raise SetupError(f"Pipeline {pipeline.name} has no table yet", remedy=f"`sluice run {pipeline.name}`")
    wanted = wanted_deliveries(
        now,
        pipeline.name,
        batches=batches,
        deliveries=deliveries,
        stream=stream,
        skip_replaced=skip_replaced,
    )
    schema = spark_schema(LakeTable.of(workspace.lake, pipeline.table).load(now.pointer).schema())
    return parquet(spark, [one.path for one in now.files if one.delivery_id in wanted], schema)


def opened(pipeline: str | Pipeline, settings: Settings | None) -> tuple[Workspace, Pipeline]:
    """Open the place of these settings, and find the pipeline as it is declared there."""
    from etl.runs.workspace import Workspace

    workspace = Workspace.open(settings)
    if isinstance(pipeline, str):
        pipeline = load_pipeline(pipeline, workspace.settings.pipelines)
    return workspace, pipeline


def wanted_deliveries(
    now: CommittedState,
    pipeline: str,
    *,
    batches: Iterable[int] | None = None,
    deliveries: Iterable[int | str] | None = None,
    stream: str | None = None,
    skip_replaced: bool = False,
) -> set[int]:
    """Return the ids of the deliveries asked for; raise SetupError where one of them is not there."""
    if stream is not None and all(one.stream_id != stream for one in now.deliveries):
        raise SetupError(
            f"Pipeline {pipeline} has no live delivery of stream {stream}",
            remedy=f"`sluice files {pipeline} --json` lists the streams of deliveries that have rows",
        )
    if batches is not None:
        stream = stream or now.current_stream
    mine = [one for one in now.deliveries if stream in (None, one.stream_id)]
    whole = {one.delivery_id for one in mine}
    selected = whole
    if batches is not None:
        of_batch = {one.batch_id: one.delivery_id for one in mine}
        selected = {of_batch[number] for number in _present(batches, of_batch, "batch", pipeline, {})}
    if deliveries is not None:
        requested = set(numbers_of("deliveries", deliveries))
        requested -= now.replaced.keys() if skip_replaced else set()
        selected = selected & _present(requested, whole, "delivery", pipeline, now.replaced)
    return selected


def _present(
    requested: Iterable[int], present: Collection[int], noun: str, pipeline: str, replaced: Mapping[int, int]
) -> set[int]:
    numbers = set(requested)
    if missing := sorted(numbers - set(present)):
        described = [
            f"{one} (replaced by {replaced[one]})" if one in replaced else str(one) for one in missing
        ]
        raise SetupError(
            f"Pipeline {pipeline} has no live {noun} {', '.join(described)}",
            remedy=f"`sluice files {pipeline} --json` lists batches and deliveries that have rows",
        )
    return numbers


def spark_schema(schema: Schema) -> StructType:
    """Convert an Iceberg schema to Spark's."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, _spark_type(f.field_type), nullable=True) for f in schema.fields])


def _spark_type(kind: IcebergType) -> DataType:
    from pyiceberg import types as iceberg
    from pyspark.sql import types as spark

    if isinstance(kind, iceberg.DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, iceberg.ListType):
        return spark.ArrayType(_spark_type(kind.element_type))
    plain: dict[type[IcebergType], DataType] = {
        iceberg.BooleanType: spark.BooleanType(),
        iceberg.IntegerType: spark.IntegerType(),
        iceberg.LongType: spark.LongType(),
        iceberg.FloatType: spark.FloatType(),
        iceberg.DoubleType: spark.DoubleType(),
        iceberg.StringType: spark.StringType(),
        iceberg.BinaryType: spark.BinaryType(),
        iceberg.DateType: spark.DateType(),
        iceberg.TimestampType: spark.TimestampNTZType(),
        iceberg.TimestamptzType: spark.TimestampType(),
    }
    return plain[type(kind)]
