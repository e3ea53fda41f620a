"""The S3 sink: an Iceberg table of Parquet files, whose pointer is a row in PostgreSQL.

New metadata is written before the transaction, against the pointer as it then is; nobody reads it until
the transaction has swapped the pointer, which it does only if the pointer has not moved.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.typedef import Record

from etl.common.database import Cursor
from etl.common.errors import NeedsPerson, ServiceAway, TableRefused
from etl.common.wording import pluralize
from etl.ledger import pointers
from etl.ledger.pointers import CATALOG
from etl.pipeline import Partition
from etl.sinks.columns import IDENTITY
from etl.sinks.evolution import SchemaDifference
from etl.sinks.lake.column_bounds import provable
from etl.sinks.lake.lake import TableLocation
from etl.sinks.lake.parquet_writer import FileSpec, Partitioning, StagedFile
from etl.sinks.lake.schema import (
    arrow_schema,
    difference_of,
    evolved,
    iceberg_schema,
    partition_spec,
    partitioned_by,
)
from etl.sinks.lake.snapshots import DraftedDelivery, Overwrite, Update, draft_name, merge_append

RETAINED_SNAPSHOTS = 20  # a restored pointer brings its own metadata, so the horizon needs no more
LAST_DELIVERY = "sluice.last-delivery"  # property of a table
TABLE_PROPERTIES = {
    "write.parquet.compression-codec": "zstd",
    "commit.manifest-merge.enabled": "true",
    "commit.num-retries": "0",  # a failed swap is ours to see
    # pyiceberg deletes before the outer COMMIT: a rolled-back commit would destroy the table
    "write.metadata.delete-after-commit.enabled": "false",
    "write.metadata.previous-versions-max": "20",
}


@dataclass(frozen=True, kw_only=True)
class Draft:
    """New metadata on S3 that nobody reads yet."""

    base: str  # where the pointer was
    location: str  # where it will be
    snapshot_id: int | None
    columns: SchemaDifference  # what it adds and widens


class _Drafts(MetastoreCatalog, NoopCatalog):
    """A catalog whose commit writes the new metadata and leaves the pointer alone."""

    def __init__(self, io: FileIO, name: uuid.UUID) -> None:
        super().__init__(CATALOG)
        self._name = name
        self._io = io

    def _load_file_io(self, *_: object, **__: object) -> FileIO:
        """Return our own FileIO, with open connections; pyiceberg would make one for each draft."""
        return self._io

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        staged = self._update_and_stage_table(table, table.name(), requirements, updates)
        version = self._parse_metadata_version(staged.metadata_location)
        location = f"{staged.metadata.location}/metadata/{version:05d}-{self._name}.metadata.json"
        # Its name is random, so nothing is there yet; pyiceberg would ask S3 so twice.
        ToOutputFile.table_metadata(staged.metadata, staged.io.new_output(location), overwrite=True)
        return CommitTableResponse(metadata=staged.metadata, **{"metadata-location": location})


class _Change(Transaction):
    """A transaction that applies its updates once for each of them, where pyiceberg does so at each look."""

    _applied: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._applied is None or self._applied[0] is not self._updates:
            self._applied = self._updates, super().table_metadata
        return self._applied[1]


@dataclass(frozen=True, kw_only=True)
class LakeTable(TableLocation):
    """One Iceberg table: its pointer, and drafts of its next metadata."""

    def create(self, cursor: Cursor, columns: pa.Schema, partition: Partition | None) -> None:
        """Create the table where it is missing; raise TableRefused for one of other columns or partitions."""
        schema = iceberg_schema(columns)
        pointer = self.pointer(cursor)
        if pointer is not None:
            _refuse_other(self, self.load(pointer), schema, partition)
            return
        metadata = new_table_metadata(
            schema=schema,
            partition_spec=partition_spec(partition, schema),
            sort_order=UNSORTED_SORT_ORDER,
            location=self.location,
            properties=TABLE_PROPERTIES,
        )
        provider = load_location_provider(table_location=self.location, table_properties={})
        location = provider.new_table_metadata_file_location(0)
        MetastoreCatalog._write_metadata(metadata, self.lake.io, location)
        pointers.create_pointer(cursor, self.namespace, self.name, location=location)

    def load(self, pointer: str) -> TableMetadata:
        """Return the table's metadata at `pointer`; raise NeedsPerson where it is gone."""
        with self.whole():
            return self.lake.metadata(pointer)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Raise NeedsPerson where an object is gone that the table's current metadata has, and that is read within."""
        try:
            yield
        except FileNotFoundError as error:
            raise NeedsPerson(
                f"Iceberg table {self.namespace}.{self.name} of the lake is not whole: an object is gone: {error}",
                remedy="restore the object from a backup or an older version in the bucket, then run the same command"
                " again; sluice.delivery has the metadata location of every delivery",
            ) from error

    def at(self, pointer: str, name: uuid.UUID | None = None, io: FileIO | None = None) -> Table:
        """Return pyiceberg's view of the table as of `pointer`; a commit to it makes a draft under `name`, through `io`."""
        io = io or self.lake.io
        return Table(
            identifier=(self.namespace, self.name),
            metadata=self.load(pointer),
            metadata_location=pointer,
            io=io,
            catalog=_Drafts(io, name or uuid.uuid4()),
        )

    def files(self, pointer: str, columns: pa.Schema, *, stream_id: str, batch_id: int) -> FileSpec:
        """Return how executors write objects of `columns`; those the table lacks have the ids to come."""
        table = self.at(pointer)
        schema, spec = table.schema(), table.spec()
        if difference_of(schema, columns).changes:
            schema = evolved(table.transaction().update_schema(), schema, columns)
        field = spec.fields[0] if spec.fields else None
        return FileSpec(
            prefix=f"{self.location}/data",
            folder=f"stream={stream_id}/batch={batch_id}",
            schema=arrow_schema(schema),
            partitioning=Partitioning(
                column=schema.find_column_name(field.source_id) or "",
                transform=str(field.transform),
                field=field.name,
            )
            if field
            else None,
        )

    def draft(
        self,
        base: str,
        files: Sequence[StagedFile],
        *,
        written: pa.Schema,
        delivery: DraftedDelivery,
        io: FileIO | None = None,
        without: frozenset[str] = frozenset(),
        of: Collection[int] = (),
        as_found: bool = False,
        replace: bool = False,
    ) -> Draft:
        """Write metadata that adds `files` to the table as of `base` and takes out the objects `without`.

        These are of the deliveries `of`. `replace`: nothing but `files` stays; `as_found`: some may be
        missing already. The table gains the columns of `written` that it lacks. Old snapshots are expired in
        the same step, save those that a user's tag or branch holds; no object is deleted. `io` may write the objects later.

        Raises ServiceAway where another run has changed the columns since, NeedsPerson where an object of
        `without` is missing.
        """
        name = draft_name(delivery.delivery_id, delivery.run_id)
        table = self.at(base, name, io)
        with self.whole(), _Change(table) as change:
            columns = self._evolve(change, written)
            if replace or without:
                overwrite = Overwrite(change, table.io, name, delivery.summary)
                update: Update = self._without(overwrite, None if replace else without, of, as_found=as_found)
            else:
                update = merge_append(change, table.io, name, delivery.summary)
            with update as snapshot:
                for file in data_files(change.table_metadata, files):
                    snapshot.append_data_file(file)
            change.set_properties({LAST_DELIVERY: str(delivery.delivery_id)})
            if expired := _expired(change.table_metadata):
                ExpireSnapshots(transaction=change).by_ids(expired).commit()
        self.lake.keep_metadata(table.metadata_location, table.metadata)
        current = table.metadata.current_snapshot()
        return Draft(
            base=base,
            location=table.metadata_location,
            snapshot_id=current.snapshot_id if current else None,
            columns=columns,
        )

    def goes_on_from(self, location: str, published: str) -> bool:
        """Tell whether the table at `location` has all that it had at `published`, whoever changed it since.

        Its snapshots tell: the one of `published` must be the current one or come before it. Where that snapshot was
        expired, or there was none, the number of the delivery tells that the table says it had last.
        """
        if published in ("", location):
            return True
        if not location:
            return False
        now, then = self.load(location), self.load(published)
        newest = then.current_snapshot_id
        if newest in _line(now):
            return True
        if now.current_snapshot_id in _line(then) or now.snapshot_by_id(newest or 0):
            return False
        return _last_delivery(now) >= _last_delivery(then)

    def difference(self, base: str, columns: pa.Schema) -> SchemaDifference:
        """Return how the table as of `base` differs from a transform's output."""
        return difference_of(self.load(base).schema(), pa.schema([*columns, *IDENTITY]))

    def lacks(self, base: str, written: pa.Schema) -> bool:
        """Tell whether a draft would change the table's columns."""
        return bool(difference_of(self.load(base).schema(), written))

    def _evolve(self, change: Transaction, written: pa.Schema) -> SchemaDifference:
        """Add and widen columns as in `written`, and return which; raise ServiceAway where another run did so otherwise."""
        different = difference_of(change.table_metadata.schema(), written)
        if different:
            with change.update_schema() as update:
                evolved(update, change.table_metadata.schema(), written)
        now = arrow_schema(change.table_metadata.schema())
        if moved := [f.name for f in written if not now.field(f.name).equals(f, check_metadata=True)]:
            raise ServiceAway(
                f"Iceberg table {self.namespace}.{self.name} was given the columns {', '.join(moved)} by another run"
                " while this one wrote its files; nothing was changed",
                remedy="run again",
            )
        return different

    def _without(
        self, snapshot: Overwrite, uris: frozenset[str] | None, of: Collection[int], *, as_found: bool
    ) -> Overwrite:
        """Take these objects (None: all) out of the snapshot and return it.

        Raises NeedsPerson where one is missing, unless `as_found`.
        """
        removed = snapshot.take_out(uris, likely=of)
        if uris is not None and removed != len(uris) and not as_found:
            raise NeedsPerson(
                f"{len(uris) - removed} of the {pluralize(len(uris), 'object')} to be replaced are no longer in"
                " Iceberg table"
                f" {self.namespace}.{self.name}: another replay committed first, or the table is not as the ledger says."
                " Nothing was changed",
                remedy="run the same command again; if the error comes again, `sluice audit PIPELINE` shows where"
                " ledger and table differ, and --accept-changed removes what is there",
            )
        return snapshot

    def swap(self, cursor: Cursor, draft: Draft) -> bool:
        """Publish a draft with the caller's transaction; return False when the pointer is not at its base."""
        return pointers.swap_pointer(
            cursor, self.namespace, self.name, location=draft.location, base=draft.base
        )


def _line(metadata: TableMetadata) -> set[int | None]:
    """Return the ids of the current snapshot and of those before it, the last of which may be expired."""
    line: set[int | None] = set()
    one = metadata.current_snapshot_id
    while one is not None and one not in line:
        line.add(one)
        known = metadata.snapshot_by_id(one)
        one = known.parent_snapshot_id if known else None
    return line


def _last_delivery(metadata: TableMetadata) -> int:
    return int(metadata.properties.get(LAST_DELIVERY, 0))


def _expired(metadata: TableMetadata) -> list[int]:
    """Return the ids of snapshots beyond the retained ones, save those that a tag or branch holds.

    For one of these pyiceberg would refuse to expire any.
    """
    held = {ref.snapshot_id for ref in metadata.refs.values()}
    snapshots = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0)
    return [s.snapshot_id for s in snapshots[:-RETAINED_SNAPSHOTS] if s.snapshot_id not in held]


def _refuse_other(
    table: LakeTable, metadata: TableMetadata, schema: Schema, partition: Partition | None
) -> None:
    problems = list(difference_of(metadata.schema(), schema).others)
    if partitioned_by(metadata) != (partition and (partition.column, partition.kind)):
        wanted = partition_spec(partition, schema)
        problems.append(f"it is partitioned by {metadata.spec()}, the sink says {wanted}")
    if problems:
        raise TableRefused(
            f"Iceberg table {table.namespace}.{table.name} does not fit the pipeline: " + "; ".join(problems),
            remedy="change the transform's output or the sink back, or name another table in the sink",
        )


def data_files(metadata: TableMetadata, files: Sequence[StagedFile]) -> list[DataFile]:
    """Build Iceberg's entries for finished objects, from their footers alone."""
    plan = compute_statistics_plan(metadata.schema(), metadata.properties)
    ids = parquet_path_to_id_mapping(metadata.schema())
    spec = metadata.spec()
    entries = []
    for file in files:
        footer = pickle.loads(file.footer)
        statistics = data_file_statistics_from_parquet_metadata(footer, provable(plan, footer, ids), ids)
        entry = DataFile.from_args(
            _table_format_version=metadata.format_version,
            content=DataFileContent.DATA,
            file_path=file.path,
            file_format=FileFormat.PARQUET,
            partition=Record(file.partition) if spec.fields else Record(),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            spec_id=metadata.default_spec_id,
            **statistics.to_serialized_dict(),
        )
        entry.spec_id = metadata.default_spec_id
        entries.append(entry)
    return entries
