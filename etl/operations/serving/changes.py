"""Gives a consumer what became of a pipeline's table since its place in the order of commits, exactly once.

Its place is a row of the ledger. It moves in the transaction that keeps what the consumer made of the changes, or after
the consumer's success; of two runs of one consumer only one moves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from etl.common.database import Connection, Cursor, transaction
from etl.common.errors import LedgerBehind, RowsSwept, SetupError
from etl.common.migrations import migrate
from etl.common.number_ranges import in_ranges
from etl.common.settings import Settings
from etl.common.statements import Statements
from etl.common.wording import first_few, pluralize
from etl.ledger import consumers
from etl.ledger.consumers import DELETE, Change, Place
from etl.operations.serving import lake_place
from etl.operations.serving.lake_place import LakePlace
from etl.operations.serving.read import opened, spark_schema
from etl.pipeline import Pipeline
from etl.sinks.columns import DELIVERY
from etl.sinks.lake import marker
from etl.sinks.lake.lake import TableLocation
from etl.sinks.lake.schema import arrow_schema
from etl.sinks.lake.table import LakeTable
from etl.spark.frames import parquet, quoted

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import DataFrame, SparkSession

STATEMENTS = Statements(__name__)

# What each row has beside the table's own columns: the kind of its change, and the delivery and commit that made it.
CHANGE, CHANGED_BY, COMMIT = "_change", "_changed_by", "_commit_seq"
MADE = pa.schema({DELIVERY: pa.int64(), CHANGE: pa.string(), CHANGED_BY: pa.int64(), COMMIT: pa.int64()})


@dataclass(kw_only=True)
class Changes:
    """What became of a pipeline's table after commit `after`, up to commit `to`; true where rows came or left.

    Leave its block without an error, and the place moves to `to`, unless `advance` or `transaction` has moved it.
    """

    pipeline: str
    consumer: str
    after: int
    to: int
    changes: Sequence[Change]  # by delivery, in the order of commits
    _place: Place | None  # where the consumer is; None: nothing of the pipeline had run
    _dsn: str
    _table: TableLocation
    _spark: SparkSession | None
    _metadata: TableMetadata | None  # of the table as it was then; None: there was none yet
    _files: Mapping[int, Sequence[str]]  # by delivery
    _advanced: bool = field(default=False, init=False)

    def __bool__(self) -> bool:
        return any(one.rows for one in self.changes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and not self._advanced:
            self.advance()

    @property
    def deliveries(self) -> list[int]:
        """Return the deliveries whose rows came, in the order of their commits."""
        return [one.delivery_id for one in self.changes if one.change != DELETE]

    @property
    def replaced(self) -> list[int]:
        """Return the deliveries that the consumer has read, and whose rows have left."""
        return [one.delivery_id for one in self.changes if one.change == DELETE]

    @property
    def snapshot_id(self) -> int | None:
        """Return the snapshot of the Iceberg table that has what came, for other readers; None: it has none yet."""
        return self._metadata.current_snapshot_id if self._metadata else None

    @property
    def rows(self) -> DataFrame:
        """Return the rows as Spark reads them, as of when the changes were asked for: see `read`."""
        if self._spark is None:
            raise SetupError(
                "These changes were asked for without Spark", remedy="`.read(spark)`, or `.to_arrow()`"
            )
        return self.read(self._spark)

    def read(self, spark: SparkSession) -> DataFrame:
        """Read the rows with Spark: those that came and those that left, told apart by `_change`."""
        from pyspark.sql import functions as F

        schema = self._table_schema()
        found = parquet(spark, self._objects(), spark_schema(schema))
        made = spark.createDataFrame(pa.Table.from_pylist([_told(one) for one in self.changes], MADE))
        names = [*(one.name for one in schema.fields), CHANGE, CHANGED_BY, COMMIT]
        return found.join(F.broadcast(made), DELIVERY).select(*map(quoted, names))

    def to_arrow(self) -> pa.Table:
        """Read the rows, as `read` does, into memory and without Spark."""
        return self.to_arrow_batch_reader().read_all()

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Read the rows, as `read` does, batch by batch and without Spark."""
        plain = pa.schema([(one.name, one.type) for one in arrow_schema(self._table_schema())])
        made = [one for one in MADE if one.name != DELIVERY]
        self._objects()  # or nothing is read
        return pa.RecordBatchReader.from_batches(pa.schema([*plain, *made]), self._batches(plain))

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for one in self.changes:
            made = [(value, MADE.field(name).type) for name, value in _told(one).items() if name != DELIVERY]
            for path in self._files.get(one.delivery_id, ()):
                with self._table.lake.open(path) as source:
                    for batch in pq.ParquetFile(source).iter_batches():
                        columns = [_column(batch, wanted) for wanted in schema]
                        columns += [pa.repeat(pa.scalar(*value), len(batch)) for value in made]
                        yield pa.RecordBatch.from_arrays(
                            columns, names=[*schema.names, CHANGE, CHANGED_BY, COMMIT]
                        )

    def advance(self, connection: Connection | None = None) -> None:
        """Move the place within the transaction that `connection` has open, or else by itself.

        Whoever opened that transaction commits it. Raises PlaceMoved where another run has moved the place: then roll back.
        """
        if connection is None:
            self._advance_by_itself()
            return
        if connection.autocommit and connection.info.transaction_status == TRANSACTION_STATUS_IDLE:
            raise SetupError(
                "The connection is in autocommit and has no transaction open, so the place would move before what was made"
                " of the rows is kept",
                remedy="`connection.autocommit = False`, and commit when both are done",
            )
        try:
            with connection.cursor() as cursor:
                self._move(cursor)
        except (psycopg2.errors.InvalidSchemaName, psycopg2.errors.UndefinedFunction) as error:
            raise SetupError(
                f"The connection leads to database {connection.info.dbname}, which has no ledger of Sluice",
                remedy="keep what you make in the ledger's own database; or advance without a connection, once it is kept",
            ) from error
        self._advanced = True

    def _advance_by_itself(self) -> None:
        """Move the place, and note on the lake that what was made of the rows is not in PostgreSQL."""
        place = self._place
        with self.transaction():
            pass
        if self and place and place.newest_delivery and place.commit_seq != self.to:
            read = LakePlace(commit_seq=self.to, delivery_id=place.newest_delivery)
            lake_place.write(self._table, self.consumer, read)

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """Run one transaction in the ledger's own database; the place moves in it when the block ends well."""
        with transaction(self._dsn) as cursor:
            self._move(cursor)  # first: another run of the consumer waits here, and finds that it came second
            yield cursor
        self._advanced = True
        if self._place is not None:
            self._place = replace(self._place, commit_seq=self.to)

    def _move(self, cursor: Cursor) -> None:
        """Move the place, or hold it where it is while what is made of these rows is kept."""
        if self._place is not None and (self.changes or self._place.commit_seq != self.to):
            consumers.advance(cursor, self.pipeline, self.consumer, place=self._place.commit_seq, to=self.to)

    def _table_schema(self) -> Schema:
        if self._metadata is None:
            raise SetupError(
                f"Pipeline {self.pipeline} has no table yet", remedy=f"`sluice run {self.pipeline}`"
            )
        return self._metadata.schema()

    def _objects(self) -> list[str]:
        """Return the objects of all rows; raise RowsSwept where one is gone whose rows have left the table."""
        left = [path for number in self.replaced for path in self._files.get(number, ())]
        if missing := self._table.lake.gone(left):
            numbers = [number for number in self.replaced if set(self._files.get(number, ())) & {*missing}]
            raise RowsSwept(
                f"Consumer {self.consumer} of {self.pipeline} is to take back the rows of"
                f" {first_few(in_ranges(numbers))}, and {pluralize(len(missing), 'object')} of them"
                f" {'is' if len(missing) == 1 else 'are'} gone, such as {missing[0]}",
                remedy=f"take back what has these numbers as {DELIVERY}, then `.advance()`; or rebuild it all, from"
                f" `sluice consumers {self.pipeline} {self.consumer} --after start` on",
            )
        return [path for one in self.changes for path in self._files.get(one.delivery_id, ())]


def changes(
    spark: SparkSession | None,
    pipeline: str | Pipeline,
    *,
    consumer: str,
    after: int | None = None,
    settings: Settings | None = None,
) -> Changes:
    """Ask what became of the pipeline's table since the consumer's place, or since commit `after` (0: all there is).

    A consumer is made when it first asks, with its place before the first commit. `spark` may be None: then
    `to_arrow` reads the rows.
    """
    consumers.require_name(consumer)
    workspace, pipeline = opened(pipeline, settings)
    dsn, name = workspace.services.postgres, pipeline.name
    migrate(dsn)
    if lost := marker.look(dsn, workspace.lake, pipeline):
        raise lost
    table = LakeTable.of(workspace.lake, pipeline.table)
    on_lake = lake_place.read(table, consumer)
    with transaction(dsn) as cursor:
        consumers.make(cursor, name, consumer)
    with transaction(dsn, one_snapshot=True) as cursor:
        place = consumers.place(cursor, name, consumer)
        if place is not None:
            _refuse_behind(cursor, name, consumer, place, on_lake)
        if after and consumers.delivery_at(cursor, name, after) is None:
            raise LedgerBehind(
                f"Commit {after} of {name} was asked after, and the ledger has no such commit: PostgreSQL went back in time,"
                " or it never was",
                remedy=f"`sluice deliveries {name} --json` has the number of each commit, as commit_seq",
            )
        start = after if after is not None else place.commit_seq if place else 0
        found = consumers.changes_after(cursor, name, start) if place else []
        pointer = table.pointer(cursor)
        files = _files(cursor, [one.delivery_id for one in found])
    return Changes(
        pipeline=name,
        consumer=consumer,
        after=start,
        to=place.newest if place else 0,
        changes=found,
        _place=place,
        _dsn=dsn,
        _table=table,
        _spark=spark,
        _metadata=table.load(pointer) if pointer else None,
        _files=files,
    )


def _refuse_behind(
    cursor: Cursor, pipeline: str, consumer: str, place: Place, on_lake: LakePlace | None
) -> None:
    """Raise LedgerBehind where the ledger has not what the consumer has read, or does not know that it has."""
    anew = f"rebuild what it made, from `sluice consumers {pipeline} {consumer} --after start` on"
    if place.found != place.delivery_id:
        seen = f"another one, delivery {place.found}," if place.found else "none"
        raise LedgerBehind(
            f"Consumer {consumer} of {pipeline} has read commit {place.commit_seq}, which was delivery {place.delivery_id};"
            f" that commit is {seen} now: PostgreSQL went back in time",
            remedy=anew,
        )
    if on_lake is not None and on_lake.commit_seq > place.commit_seq:
        back = consumers.delivery_at(cursor, pipeline, on_lake.commit_seq) == on_lake.delivery_id
        go_on = f"`sluice consumers {pipeline} {consumer} --after {on_lake.delivery_id}`: all that it has read was put back"
        raise LedgerBehind(
            f"Consumer {consumer} of {pipeline} has read up to commit {on_lake.commit_seq}, which was delivery"
            f" {on_lake.delivery_id}, says the lake, and its place in the ledger is commit {place.commit_seq}:"
            " PostgreSQL went back in time, and what the consumer made did not",
            remedy=go_on if back else anew,
        )


def _files(cursor: Cursor, deliveries: Sequence[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for number, path in STATEMENTS.execute(cursor, "files", deliveries=deliveries).fetchall():
        found.setdefault(number, []).append(path)
    return found


def _told(one: Change) -> dict[str, int | str]:
    """Return what each row of a change says of it, by column."""
    told = (one.delivery_id, one.change, one.changed_by, one.commit_seq)
    return dict(zip(MADE.names, told, strict=True))


def _column(batch: pa.RecordBatch, wanted: pa.Field) -> Any:
    """Return a column of the batch as the table has it by now; null where its object is older than the column."""
    place = batch.schema.get_field_index(wanted.name)
    return pa.nulls(len(batch), wanted.type) if place < 0 else batch.column(place).cast(wanted.type)
