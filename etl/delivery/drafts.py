"""Drafts both Iceberg tables' next metadata beside other commits, and publishes it only where no other came between."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from etl.common.database import Cursor, transaction
from etl.common.errors import NeedsPerson
from etl.delivery.batch import DeliveryContext, Staged
from etl.delivery.ledger_entry import Entry, Published
from etl.delivery.stage import StageTask
from etl.ledger import deliveries
from etl.sinks.evolution import SchemaDifference
from etl.sinks.lake.parquet_writer import StagedFile
from etl.sinks.lake.snapshots import DraftedDelivery
from etl.sinks.lake.table import Draft, LakeTable
from etl.sinks.lake.uploads import Uploads
from etl.sinks.open import Sinks


class BaseMoved(Exception):
    """Another commit of the pipeline came between the draft and the lock."""


@dataclass(frozen=True, kw_only=True)
class CommitBase:
    """What a commit follows: another one that comes between makes its draft old."""

    previous: int | None  # the pipeline's newest delivery
    data: str  # where the tables' metadata is; empty: nowhere yet
    quarantine: str


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """Both tables' next metadata; None where a table gains no file and stays at its base."""

    data: Draft | None
    quarantine: Draft | None
    base: CommitBase

    @property
    def columns(self) -> SchemaDifference:
        """Return what the draft of the table adds and widens."""
        return self.data.columns if self.data else SchemaDifference()

    @property
    def published(self) -> Published:
        """Return what the commit publishes."""
        return Published(
            metadata_location=self.data.location if self.data else self.base.data,
            quarantine_metadata_location=self.quarantine.location
            if self.quarantine
            else self.base.quarantine,
            snapshot_id=self.data.snapshot_id if self.data else None,
        )

    def publish(self, cursor: Cursor, sinks: Sinks) -> None:
        """Swap both tables' pointers. Raises BaseMoved where one of them is no longer at its base."""
        _swap(cursor, sinks.table, self.data, self.base.data)
        _swap(cursor, sinks.quarantine, self.quarantine, self.base.quarantine)


def read_base(context: DeliveryContext) -> CommitBase:
    """Read what a commit follows now. Raises NeedsPerson where a table lacks what its newest delivery published."""
    table, quarantine, pipeline = context.sinks.table, context.sinks.quarantine, context.lease.pipeline
    with transaction(context.sinks.dsn) as cursor:
        newest = deliveries.newest(cursor, pipeline)
        data, held_at = table.pointer(cursor) or "", quarantine.pointer(cursor) or ""
    if newest is not None:
        _require_forward(table, data, newest.data, newest.delivery_id, pipeline)
        _require_forward(quarantine, held_at, newest.quarantine, newest.delivery_id, pipeline)
    return CommitBase(previous=newest.delivery_id if newest else None, data=data, quarantine=held_at)


def _require_forward(table: LakeTable, location: str, published: str, newest: int, pipeline: str) -> None:
    """Raise NeedsPerson where the table lacks what its `newest` delivery published.

    A commit would leave that out for good.
    """
    if table.goes_on_from(location, published):  # others may have committed to it
        return
    raise NeedsPerson(
        f"Iceberg table {table.namespace}.{table.name} of {pipeline} went back in time: it is at"
        f" {location or 'nothing'}, which lacks what delivery {newest} published at {published}. Nothing was changed",
        remedy=f"`UPDATE sluice.iceberg_tables SET metadata_location = '{published}' WHERE table_namespace ="
        f" '{table.namespace}' AND table_name = '{table.name}'`, then run the same command again",
    )


def draft_tables(
    context: DeliveryContext,
    entry: Entry,
    task: StageTask,
    staged: Staged,
    *,
    base: CommitBase,
    uploads: Uploads,
) -> Drafts:
    """Draft the next metadata of both tables, side by side, which is written by the end of `uploads`."""
    sinks, kind = context.sinks, context.kind
    delivery = DraftedDelivery(
        delivery_id=entry.delivery_id,
        stream_id=entry.stream_id,
        batch_id=entry.batch_id,
        run_id=entry.run_id,
        manifest=entry.manifest,
    )

    def draft(
        name: str,
        table: LakeTable,
        location: str,
        files: Sequence[StagedFile],
        written: pa.Schema,
        *,
        replace: bool = False,
    ) -> Draft | None:
        without = kind.leaving(name)
        if not (files or without or replace or table.lacks(location, written)):
            return None
        return table.draft(
            location,
            files,
            written=written,
            delivery=delivery,
            io=uploads,
            without=without,
            of=kind.supersedes,
            as_found=kind.as_found,
            replace=replace,
        )

    data = "data", sinks.table, base.data, staged.data_files, task.data.schema
    held = (
        "quarantine",
        sinks.quarantine,
        base.quarantine,
        staged.quarantine_files,
        task.quarantine.schema,
    )
    with ThreadPoolExecutor(2) as both:
        first = both.submit(draft, *data, replace=sinks.mode.only_newest)
        second = both.submit(draft, *held)
        return Drafts(data=first.result(), quarantine=second.result(), base=base)


def _swap(cursor: Cursor, table: LakeTable, draft: Draft | None, base: str) -> None:
    """Publish the table's draft; where it has none, require that the table still is at its base.

    Raises BaseMoved where it is not.
    """
    stands = table.swap(cursor, draft) if draft is not None else (table.pointer(cursor) or "") == base
    if not stands:
        raise BaseMoved
