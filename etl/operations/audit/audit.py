"""`sluice audit`: reads and counts every row of both sinks again, and compares the counts with the ledger.

The report is clean exactly when both sinks hold the same rows, delivery by delivery, these are the rows that
the ledger says were delivered, and it lacks none that the lake's marker names. The ledger, the pointers and the
table are read as of one moment, so a run may go on meanwhile. Nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg2
import pyarrow as pa
from psycopg2 import sql
from pyiceberg.table.metadata import TableMetadata

from etl.common.database import Cursor, rows, savepoint, transaction
from etl.common.migrations import migrate
from etl.common.paths import shown
from etl.common.record_columns import is_own
from etl.common.statements import Statements
from etl.ledger import streams
from etl.ledger.deliveries import (
    DeliveredInput,
    LiveDelivery,
    delivered_files,
    deliveries_in_force,
    inputs_by_delivery,
)
from etl.ledger.telemetry import maintenance, orphans
from etl.operations.audit.compare import (
    LAKE,
    TABLE,
    AuditDifference,
    LedgerFile,
    compare,
    expected_held,
    expected_rows,
    file_differences,
    latest_differences,
    unreadable_differences,
)
from etl.operations.audit.latest_per_key import Latest, LatestPerKey
from etl.operations.audit.quarantine_recount import recount_held_lake, recount_held_table
from etl.operations.audit.recount import Recount, Unreadable, recount_lake, table_rows
from etl.operations.audit.report import AuditReport, ChangedInputs, Orphan, ways_back
from etl.pipeline import Pipeline
from etl.runs.heartbeat import require_sink
from etl.sinks.columns import SYSTEM_COLUMNS
from etl.sinks.lake import marker
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.references import (
    Attempt,
    Owner,
    current_files,
    is_of,
    owner_of,
    recorded_manifests,
    referenced,
    retained_pointers,
)
from etl.sinks.lake.s3 import s3_client, stored
from etl.sinks.lake.schema import arrow_schema
from etl.sinks.lake.table import LakeTable
from etl.sinks.modes import mode_of
from etl.sinks.warehouse.table import column_types, postgres_type
from etl.sources import evidence
from etl.sources.cutoff import undelivered
from etl.sources.listing.closing import any_closed

if TYPE_CHECKING:
    from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class _Delivered:
    """What the ledger says, as of one moment."""

    deliveries: Sequence[LiveDelivery]  # that the table's rows are to come from
    held: Sequence[LiveDelivery]  # that the quarantine's rows are to come from
    files: Mapping[str, LedgerFile]  # by URI
    metadata: Sequence[TableMetadata | None]  # of the table and of its quarantine

    @property
    def data(self) -> TableMetadata | None:
        return self.metadata[0]

    @property
    def columns(self) -> pa.Schema:
        assert self.data is not None
        return pa.schema([f for f in arrow_schema(self.data.schema()) if not is_own(f.name)])


@dataclass(kw_only=True)
class _Recounted:
    """What both sinks were found to hold."""

    table: Recount
    lake: Recount
    held_table: Recount
    held_lake: Recount  # the lake's quarantine: its typed columns
    held_wire: Recount  # the same rows in the form that sluice.quarantine has them
    unreadable: list[Unreadable]
    latest: Latest | None = None
    table_problems: list[str] = field(default_factory=list)


def audit(workspace: Workspace, pipeline: Pipeline) -> AuditReport:
    """Compare both sinks with each other and with the ledger."""
    started = time.monotonic()
    dsn, lake = workspace.services.postgres, workspace.lake
    migrate(dsn)
    tables = LakeTable.of(lake, pipeline.table), LakeTable.of(lake, pipeline.quarantine_table)
    with transaction(dsn, one_snapshot=True) as cursor:
        _keep_table(cursor, pipeline)
        require_sink(cursor, pipeline)
        lost = marker.look(dsn, lake, pipeline)
        STATEMENTS.execute(cursor, "no_time_limits")
        said = _delivered(cursor, pipeline, *tables)
        retained = retained_pointers(cursor, pipeline.name, tables, workspace.settings.backup_horizon)
        manifests = recorded_manifests(cursor, pipeline.name)
        listed = _listed(lake, tables)
        snapshots = [current_files(*both) for both in zip(tables, said.metadata, strict=True)]
        there = [[uri for uri in files if uri in listed] for files in snapshots]
        recounted = _recount(cursor, pipeline, lake, said, there) if said.data else None
        read = inputs_by_delivery(cursor, pipeline.name)
        stream = streams.current_stream(cursor, pipeline.name)
    differences = file_differences(said.files, snapshots[0] | snapshots[1], listed)
    found = _orphans(dsn, tables, retained, listed, manifests, seen=_last_commit(said.held))
    orphans.note(dsn, pipeline.name, [one.bytes for one in found], seen_by="audit")
    differences += _row_differences(pipeline, said, recounted) if recounted else []
    inputs = _changed_inputs(read, workspace.settings.landing)
    not_yet = sorted(undelivered(pipeline, workspace.settings.landing, {one.path for one in read}))
    if lost:
        differences.insert(0, AuditDifference(kind="ledger", delivery_id=None, what=lost.seen))
    maintenance.note(dsn, pipeline.name, "audit", differences=len(differences))
    return AuditReport(
        pipeline=pipeline.name,
        snapshot_id=said.data.current_snapshot_id if said.data else None,
        deliveries=len(said.held),
        rows=_rows_read(recounted) if recounted else {},
        differences=differences,
        orphans=found,
        changed_inputs=[what for whats in inputs.changes.values() for what in whats],
        changed_deliveries=inputs.changes,
        undelivered=[*map(shown, not_yet)],
        next=[
            *([lost.remedy] if lost else []),
            *ways_back(
                pipeline,
                differences,
                inputs.of(one.delivery_id for one in said.deliveries),
                in_force=said.held,
                state=bool(stream and stream.state),
            ),
            *([f"`sluice run {pipeline.name} --closed`"] if any_closed(pipeline, not_yet) else []),
        ],
        seconds=round(time.monotonic() - started, 3),
    )


def _keep_table(cursor: Cursor, pipeline: Pipeline) -> None:
    """Keep others from rewriting the table, as a wider column does: an older snapshot would find it empty.

    Locking takes no snapshot, looking whether the table is there would.
    """
    target = sql.Identifier(pipeline.table_schema, pipeline.table_name)
    with suppress(psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName), savepoint(cursor):
        STATEMENTS.execute(cursor, "keep_table", target=target)


def _delivered(cursor: Cursor, pipeline: Pipeline, data: LakeTable, quarantine: LakeTable) -> _Delivered:
    deliveries = deliveries_in_force(cursor, pipeline.name)
    current = mode_of(pipeline.sink).in_force(deliveries)
    numbers = {one.delivery_id for one in current}
    files = delivered_files(cursor, pipeline.name)
    pointers = data.pointer(cursor), quarantine.pointer(cursor)
    loaded = [table.load(at) if at else None for table, at in zip((data, quarantine), pointers, strict=True)]
    return _Delivered(
        deliveries=current,
        held=deliveries,
        files={
            one.path: LedgerFile(delivery_id=one.delivery_id, rows=one.rows, bytes=one.bytes)
            for one in files
            if one.kind == "quarantine" or one.delivery_id in numbers
        },
        metadata=loaded,
    )


def _listed(lake: Lake, tables: Iterable[LakeTable]) -> dict[str, int]:
    """Return the size in bytes of every object below the tables' folders, by URI."""
    client = s3_client(lake.store)
    return {one.uri: one.bytes for table in tables for one in stored(client, table.location)}


def _recount(
    cursor: Cursor, pipeline: Pipeline, lake: Lake, said: _Delivered, there: Sequence[Sequence[str]]
) -> _Recounted:
    """Read both sinks at the same time: PostgreSQL by this thread, the lake by others."""
    columns = said.columns
    with ExitStack() as stack:
        latest = _latest(stack, pipeline, said, columns)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        reading = pool.submit(recount_lake, lake, there[0], columns, latest.log if latest else None)
        holding = pool.submit(recount_held_lake, lake, there[1], columns)
        table, problems = _recount_table(cursor, pipeline, columns, latest)
        held_table = recount_held_table(cursor, pipeline.name)
        counted, broken = reading.result()
        held_lake, held_wire, held_broken = holding.result()
        return _Recounted(
            table=table,
            lake=counted,
            held_table=held_table,
            held_lake=held_lake,
            held_wire=held_wire,
            unreadable=broken + held_broken,
            latest=latest.compare() if latest and not problems else None,
            table_problems=problems,
        )


def _latest(
    stack: ExitStack, pipeline: Pipeline, said: _Delivered, columns: pa.Schema
) -> LatestPerKey | None:
    key = mode_of(pipeline.sink).key
    if key is None:
        return None
    return stack.enter_context(
        LatestPerKey(
            columns,
            keys=key.columns,
            newest=key.newest,
            order={one.delivery_id: one.commit_seq for one in said.deliveries},
            rows=sum(one.delivered for one in said.deliveries),
        )
    )


def _recount_table(
    cursor: Cursor, pipeline: Pipeline, columns: pa.Schema, latest: LatestPerKey | None
) -> tuple[Recount, list[str]]:
    """Recount the table; return the recount, and what of the table's columns makes one impossible."""
    target = sql.Identifier(pipeline.table_schema, pipeline.table_name)
    recount = Recount(names=[*columns.names, "_beyond"])
    present = column_types(cursor, target.as_string(cursor))
    wanted = {f.name: postgres_type(f.type) for f in columns}
    wanted |= dict(zip(SYSTEM_COLUMNS, ("uuid", "bigint", "bigint"), strict=True))
    problems = [] if present else [f"table {pipeline.table} is gone"]
    problems += [
        f"table {pipeline.table}: column {column} is {present.get(column, 'missing')}, the lake's is {kind}"
        for column, kind in wanted.items()
        if present and present.get(column) != kind
    ]

    def take(batch: pa.RecordBatch) -> None:
        recount.add(batch)
        if latest is not None:
            latest.table(batch)

    if not problems:
        table_rows(cursor, target, columns, take)
    return recount, problems


def _row_differences(pipeline: Pipeline, said: _Delivered, recounted: _Recounted) -> list[AuditDifference]:
    delivered, held = expected_rows(said.deliveries), expected_held(said.held)
    keyed = mode_of(pipeline.sink).key is not None  # the table lacks what newer rows of their keys cover
    differences = [
        AuditDifference(kind="table", delivery_id=None, what=what) for what in recounted.table_problems
    ]
    differences += unreadable_differences(recounted.unreadable, said.files)
    sinks = {LAKE: recounted.lake} | ({} if keyed or recounted.table_problems else {TABLE: recounted.table})
    differences += compare("rows", delivered, sinks)
    if recounted.latest is not None:
        differences += latest_differences(recounted.latest)
    differences += compare("quarantine", held, {LAKE: recounted.held_lake})
    in_lake = recounted.held_wire.tallies
    return differences + compare("quarantine", in_lake, {TABLE: recounted.held_table}, said_by=LAKE)


def _rows_read(recounted: _Recounted) -> dict[str, int]:
    return {
        "lake": recounted.lake.rows,
        **({} if recounted.table_problems else {"table": recounted.table.rows}),
        "lake's quarantine": recounted.held_lake.rows,
        "sluice.quarantine": recounted.held_table.rows,
    }


def _orphans(
    dsn: str,
    tables: Sequence[LakeTable],
    pointers: Sequence[Sequence[str]],
    listed: Mapping[str, int],
    known: frozenset[str],
    *,
    seen: int,
) -> list[Orphan]:
    """Return the objects that no metadata of the horizon references, nor the ledger as a delivery's manifest.

    What was committed after `seen`, the last commit that the audit knows, is not looked at.
    """
    needed = set(known)
    for table, retained in zip(tables, pointers, strict=True):
        needed |= set(referenced(table, retained))
    unneeded = {
        uri: owner_of(uri) for uri in listed if uri not in needed and not marker.is_marker(uri, tables)
    }
    numbers = [owner.delivery_id for owner in unneeded.values() if owner]
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "attempts", deliveries=numbers, seen=seen)
        attempts = {one["delivery_id"]: Attempt(**one) for one in rows(cursor)}

    def orphan(uri: str, owner: Owner | None) -> Orphan:
        found = attempts.get(owner.delivery_id) if owner else None
        if owner is None or found is None or not is_of(owner, found):
            return Orphan(uri=uri, bytes=listed[uri], delivery_id=None, state="unknown")
        return Orphan(uri=uri, bytes=listed[uri], delivery_id=owner.delivery_id, state=found.state)

    found = [orphan(uri, owner) for uri, owner in sorted(unneeded.items(), key=lambda one: one[0])]
    return [one for one in found if one.state != "since"]


def _last_commit(deliveries: Sequence[LiveDelivery]) -> int:
    """Return the number of the last commit, 0 if there was none: the newest delivery is always live.

    The deliveries are live ones in the order of their commits.
    """
    return deliveries[-1].commit_seq if deliveries else 0


def _changed_inputs(read: Sequence[DeliveredInput], landing: str) -> ChangedInputs:
    """Find the delivered files that are no longer as they were."""
    now = {(one.source, one.path): one for one in evidence.look_again(read, landing=landing)}
    gone = {was.delivery_id for was in read if (was.source, was.path) not in now}
    changes: dict[int, list[str]] = {}
    for was in sorted(read, key=lambda one: (one.delivery_id, one.source, one.path)):
        found = now.get((was.source, was.path))
        if whats := evidence.changed([was], [found] if found else []):
            changes.setdefault(was.delivery_id, []).extend(whats)
    return ChangedInputs(changes=changes, gone=gone)
