"""`sluice sweep`: removes what attempts left behind that will never be committed.

No object is removed that a reader of any pointer within the backup horizon may open, nor one whose attempt
is open, ended within the horizon, or is not known to PostgreSQL, nor one whose rows a consumer has still to
take back. The order makes it so: objects are listed first, then the pipeline's row is locked to decide which
attempts are dead, and only then pointers are read.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from etl.common.database import Cursor, rows_as, transaction
from etl.common.errors import NeedsPerson, ServiceAway, SetupError, SluiceError
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.common.wording import pluralize
from etl.ledger import deliveries, leases, pipelines
from etl.ledger.pointers import CATALOG
from etl.ledger.stops import open_stops
from etl.ledger.telemetry import alerts, maintenance, orphans
from etl.pipeline import Pipeline
from etl.pipeline.replayability import run_command
from etl.runs.kinds.open import stream_of
from etl.sinks.lake import marker
from etl.sinks.lake.lake import Lake
from etl.sinks.lake.references import (
    Attempt,
    is_of,
    owner_of,
    recorded_manifests,
    referenced,
    retained_pointers,
)
from etl.sinks.lake.s3 import Stored, Upload, bucket_of, s3_client, stored, translated, unfinished
from etl.sinks.lake.table import LakeTable
from etl.sinks.modes import mode_of
from etl.sinks.warehouse.leftovers import drop_staging_left, staging_left

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)


AT_ONCE = 1000  # objects in one request, or alerts in one transaction
SHOWN = 20

Check = Callable[[Cursor], SluiceError | None]


@dataclass(frozen=True, kw_only=True)
class SweptAttempt(Attempt):
    """An attempt whose objects may be removed once it is dead."""

    closed: bool  # it has ended, and is not still to be recovered
    dead: bool  # it ended before the horizon: no backup that may be restored has it open


@dataclass(frozen=True, kw_only=True)
class Removed:
    """An object that was removed, or would be."""

    uri: str
    bytes: int
    delivery_id: int
    state: str  # how its attempt ended: delivered, stopped, failed or fenced


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """What was removed, and what was left where it is."""

    pipeline: str
    dry_run: bool
    objects: Sequence[Removed]
    uploads: Sequence[str] | None  # unfinished ones; None: the store can't list them
    staging_tables: Sequence[str]
    kept: Mapping[str, int]  # why -> objects that no retained metadata needs
    reports: int = 0  # of deliveries older than the retention of quality
    progress: int = 0  # batches of earlier streams whose progress was kept
    alerts: int = 0  # that are over for longer than the retention of quality

    def lines(self) -> list[str]:
        """Return the report in lines for people."""
        done = "would remove" if self.dry_run else "removed"
        size = sum(one.bytes for one in self.objects)
        uploads = (
            "unknown unfinished uploads"
            if self.uploads is None
            else pluralize(len(self.uploads), "unfinished upload")
        )
        objects = f"{pluralize(len(self.objects), 'object')} ({pluralize(size, 'byte')})"
        tables = pluralize(len(self.staging_tables), "staging table")
        lines = [f"{self.pipeline}: {done} {objects}, {uploads}, {tables}"]
        lines += [f"  {one.uri} (delivery {one.delivery_id}, {one.state})" for one in self.objects[:SHOWN]]
        if len(self.objects) > SHOWN:
            lines.append(f"  and {len(self.objects) - SHOWN:,} more")
        if self.reports:
            lines.append(
                f"  {done} the reports and sketches of {pluralize(self.reports, 'delivery', 'deliveries')};"
                " their figures stay"
            )
        if self.progress:
            lines.append(
                f"  {done} how {pluralize(self.progress, 'batch', 'batches')} of earlier streams ran"
            )
        if self.alerts:
            lines.append(f"  {done} {pluralize(self.alerts, 'alert')} that had long been over")
        if self.uploads is None:
            lines.append("  the store can't list unfinished uploads")
        return lines + [f"  left {pluralize(count, 'object')}: {why}" for why, count in self.kept.items()]


@dataclass(frozen=True, kw_only=True)
class _Decided:
    """What the transaction decided, and what it read after that."""

    attempts: Mapping[int, SweptAttempt]  # that PostgreSQL knows, by delivery id
    pointers: Sequence[Sequence[str]]  # of each table, within the horizon
    current: Sequence[str | None]
    manifests: frozenset[str]  # delivery manifests of the ledger
    # objects of rows that left the table, and that a consumer had read and has not taken back
    to_take_back: frozenset[str]
    staging: Sequence[str]

    def attempt(self, uri: str) -> SweptAttempt | None:
        """Return the attempt that wrote `uri`, if PostgreSQL knows it."""
        owner = owner_of(uri)
        attempt = self.attempts.get(owner.delivery_id) if owner else None
        return attempt if owner and attempt and is_of(owner, attempt) else None


def sweep(workspace: Workspace, pipeline: Pipeline, *, dry_run: bool = False) -> SweepReport:
    """Sweep a pipeline, or raise NeedsPerson while its checkpoint and the ledger do not fit together."""
    dsn = workspace.services.postgres
    migrate(dsn)

    horizon, retention = workspace.settings.backup_horizon, workspace.settings.quality_retention
    check = stream_of(workspace, pipeline).mismatch
    report = sweep_lake(dsn, workspace.lake, pipeline, horizon=horizon, dry_run=dry_run, check=check)
    report = replace(report, progress=_forget_progress(dsn, pipeline, horizon, dry_run=dry_run))
    if retention is not None:
        report = replace(
            report,
            reports=_forget_reports(dsn, pipeline, retention, dry_run=dry_run),
            alerts=_forget_alerts(dsn, pipeline, retention, dry_run=dry_run),
        )
    if not dry_run:
        maintenance.note(dsn, pipeline.name, "sweep")
    return report


def _forget_progress(dsn: str, pipeline: Pipeline, horizon: dt.timedelta, *, dry_run: bool) -> int:
    """Take out how batches ran of streams that are no longer the pipeline's, unless `dry_run`; return their number.

    Only those older than the horizon are taken. Of the current stream, the run keeps the newest.
    """
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "of_earlier_streams", pipeline=pipeline.name, horizon=horizon)
        [(count,)] = cursor.fetchall()
        if not dry_run:
            STATEMENTS.execute(cursor, "forget_earlier_streams", pipeline=pipeline.name, horizon=horizon)
    return int(count)


def _forget_reports(dsn: str, pipeline: Pipeline, retention: dt.timedelta, *, dry_run: bool) -> int:
    """Take out reports and sketches older than `retention`, unless `dry_run`; return how many deliveries had them."""
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "old_reports", pipeline=pipeline.name, retention=retention)
        [(count,)] = cursor.fetchall()
        if not dry_run:
            STATEMENTS.execute(cursor, "forget_reports", pipeline=pipeline.name, retention=retention)
            STATEMENTS.execute(cursor, "forget_sketches", pipeline=pipeline.name, retention=retention)
    return int(count)


def _forget_alerts(dsn: str, pipeline: Pipeline, retention: dt.timedelta, *, dry_run: bool) -> int:
    """Take out alerts that are over for longer than `retention`, unless `dry_run`; return how many there were.

    A transaction takes out AT_ONCE at most, so that nothing waits for it for long.
    """
    with transaction(dsn) as cursor:
        count = alerts.old(cursor, pipeline.name, retention)
    for _ in range(0, 0 if dry_run else count, AT_ONCE):
        with transaction(dsn) as cursor:
            alerts.forget_old(cursor, pipeline.name, retention, most=AT_ONCE)
    return count


def sweep_lake(
    dsn: str,
    lake: Lake,
    pipeline: Pipeline,
    *,
    horizon: dt.timedelta,
    dry_run: bool = False,
    check: Check | None = None,
) -> SweepReport:
    """Sweep a pipeline's objects, unfinished uploads and staging tables.

    `check` says, under the pipeline's lock, what forbids it; that is raised.
    """
    client = s3_client(lake.store)
    tables = LakeTable.of(lake, pipeline.table), LakeTable.of(lake, pipeline.quarantine_table)
    candidates = [one for table in tables for one in stored(client, table.location)]
    uploads = _uploads(client, tables)
    with transaction(dsn) as cursor:
        decided = _decide(cursor, pipeline, tables, candidates, uploads or [], horizon, check)
        if dry_run:
            cursor.connection.rollback()  # attempts are not fenced for a look
    doomed, kept, left = _choose(dsn, pipeline, tables, candidates, decided)
    aborted = [one for one in uploads or [] if (known := decided.attempt(one.uri)) and known.closed]
    staging = list(decided.staging)
    if not dry_run:
        _delete(client, doomed)
        _abort(client, aborted)
        busy = drop_staging_left(dsn, staging)
        staging = [table for table in staging if table not in busy]
        orphans.note(dsn, pipeline.name, left, seen_by="sweep")
    return SweepReport(
        pipeline=pipeline.name,
        dry_run=dry_run,
        objects=doomed,
        uploads=None if uploads is None else [one.uri for one in aborted],
        staging_tables=staging,
        kept=kept,
    )


def _uploads(client: S3Client, tables: Sequence[LakeTable]) -> list[Upload] | None:
    by_table = [unfinished(client, table.location) for table in tables]
    return (
        None if any(one is None for one in by_table) else [upload for one in by_table for upload in one or ()]
    )


def _decide(
    cursor: Cursor,
    pipeline: Pipeline,
    tables: Sequence[LakeTable],
    candidates: Sequence[Stored],
    uploads: Sequence[Upload],
    horizon: dt.timedelta,
    check: Check | None,
) -> _Decided:
    """Read which attempts are dead, and only after that where the pointers are.

    It holds the pipeline's lock, so no commit can come in between. Raises what forbids a sweep.
    """
    pipelines.lock(cursor, pipeline.name)
    leases.fence_dead_beside(cursor, pipeline.name)
    _refuse(cursor, pipeline, tables, check)
    owners = [owner_of(uri) for uri in (*(one.uri for one in candidates), *(one.uri for one in uploads))]
    numbers = {owner.delivery_id for owner in owners if owner}
    STATEMENTS.execute(
        cursor, "attempts", pipeline=pipeline.name, horizon=horizon, deliveries=sorted(numbers)
    )
    attempts = rows_as(cursor, SweptAttempt)
    return _Decided(
        attempts={one.delivery_id: one for one in attempts},
        pointers=retained_pointers(cursor, pipeline.name, tables, horizon),
        current=[table.pointer(cursor) for table in tables],
        manifests=recorded_manifests(cursor, pipeline.name),
        to_take_back=frozenset(
            path for (path,) in STATEMENTS.execute(cursor, "to_take_back", pipeline=pipeline.name).fetchall()
        ),
        staging=staging_left(cursor, pipeline.name),
    )


def _refuse(cursor: Cursor, pipeline: Pipeline, tables: Sequence[LakeTable], check: Check | None) -> None:
    name = pipeline.name
    if stops := open_stops(cursor, name):
        batches = ", ".join(str(stop.batch_id) for stop in stops)
        decide = f"`{stops[0].next(name)}`, then " if pipeline.replayable else ""
        raise NeedsPerson(
            f"Pipeline {name} is stopped at batch {batches}; nothing is swept while a stop is open",
            remedy=f"{decide}`{run_command(pipeline)}`",
        )
    if check and (problem := check(cursor)):
        raise problem
    data, quarantine = (f"{table.location}/" for table in tables)
    names = tuple((table.namespace, table.name) for table in tables)
    STATEMENTS.execute(cursor, "neighbours", catalog=CATALOG, tables=names, data=data, quarantine=quarantine)
    if others := [table for (table,) in cursor.fetchall()]:
        raise SetupError(
            f"The objects of pipeline {name} share their folder with the Iceberg tables {', '.join(others)}",
            remedy="give each pipeline's table a name of its own",
        )


def _choose(
    dsn: str,
    pipeline: Pipeline,
    tables: Sequence[LakeTable],
    candidates: Sequence[Stored],
    decided: _Decided,
) -> tuple[list[Removed], dict[str, int], list[int]]:
    """Return what to remove; and of the rest that no metadata needs, how much is left and why, and the size of each."""
    needed = set(decided.manifests)
    for table, pointers, current in zip(tables, decided.pointers, decided.current, strict=True):
        needed |= _needed(table, pointers, current)
    unneeded = {
        one.uri: one.bytes
        for one in candidates
        if one.uri not in needed and not marker.is_marker(one.uri, tables)
    }
    doomed: list[Removed] = []
    kept: Counter[str] = Counter()
    for uri, size in unneeded.items():
        attempt = decided.attempt(uri)
        if attempt is None:
            kept["PostgreSQL does not know what wrote them"] += 1
        elif not attempt.closed:
            kept["their attempts are open, or still to be recovered"] += 1
        elif not attempt.dead:
            kept["their attempts ended within the backup horizon"] += 1
        elif uri in decided.to_take_back:
            kept[f"a consumer has still to take their rows back: see `sluice consumers {pipeline.name}`"] += 1
        else:
            found = Removed(uri=uri, bytes=size, delivery_id=attempt.delivery_id, state=attempt.state)
            doomed.append(found)
    live = _live(dsn, pipeline, [one.uri for one in doomed])
    if live:
        kept[f"the ledger has them live and no metadata has: see `sluice audit {pipeline.name}`"] = len(live)
    removed = [one for one in doomed if one.uri not in live]
    left = unneeded.keys() - {one.uri for one in removed}
    return removed, dict(kept), [unneeded[uri] for uri in left]


def _needed(table: LakeTable, pointers: Sequence[str], current: str | None) -> set[str]:
    with table.whole():
        return set(referenced(table, pointers, whole=current))


def _live(dsn: str, pipeline: Pipeline, uris: Sequence[str]) -> set[str]:
    """Return the URIs that are files of live deliveries; what a later delivery replaced is not."""
    mode, live = mode_of(pipeline.sink), set[str]()
    with transaction(dsn) as cursor:
        newest = deliveries.last_delivery(cursor, pipeline.name)
        for some in _parts(uris):
            STATEMENTS.execute(cursor, "delivered_paths", pipeline=pipeline.name, paths=some)
            for path, kind, delivery in cursor.fetchall():
                if kind == "quarantine" or mode.is_in_force(delivery, newest=newest):
                    live.add(path)
    return live


def _parts(items: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(items), AT_ONCE):
        yield list(items[start : start + AT_ONCE])


def _delete(client: S3Client, doomed: Sequence[Removed]) -> None:
    for some in _parts([one.uri for one in doomed]):
        bucket = bucket_of(some[0])[0]
        try:
            answer = client.delete_objects(
                Bucket=bucket, Delete={"Objects": [{"Key": bucket_of(uri)[1]} for uri in some], "Quiet": True}
            )
        except (BotoCoreError, ClientError) as error:
            raise translated(error, some[0]) from error
        if refused := answer.get("Errors"):
            first = f"{refused[0].get('Key')}: {refused[0].get('Message')}"
            raise ServiceAway(
                f"S3 did not remove {pluralize(len(refused), 'object')}, such as {first}",
                remedy="check what the credentials may do there, then sweep again, which goes on from here",
            )


def _abort(client: S3Client, uploads: Sequence[Upload]) -> None:
    for one in uploads:
        bucket, key = bucket_of(one.uri)
        try:
            client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=one.upload_id)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") != "NoSuchUpload":  # it ended by itself
                raise translated(error, one.uri) from error
        except BotoCoreError as error:
            raise translated(error, one.uri) from error
