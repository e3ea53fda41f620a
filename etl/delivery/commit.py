"""Commits a batch into both sinks in one transaction, after it has written manifest and drafts.

Three outcomes are three ends: it returns (the batch is committed), it raises (it is not), or it raises
CommitUnknown (the connection broke during COMMIT and PostgreSQL could not be asked since).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import psycopg2

from etl.common.database import TIMEOUTS, Cursor, idling, is_lost, telling_of_limit, transaction
from etl.common.errors import CommitTooLong, CommitUnknown, ServiceAway, SluiceError
from etl.common.outcome import in_short
from etl.common.steps import Step, reached
from etl.delivery.batch import Batch, DeliveryContext, Receipt, Staged
from etl.delivery.copy_ahead import CopyAhead
from etl.delivery.drafts import BaseMoved, Drafts, draft_tables, read_base
from etl.delivery.ledger_entry import (
    Entry,
    insert_delivery,
    insert_files,
    insert_inputs,
    insert_quality,
    report_text,
)
from etl.delivery.manifest import DeliveryManifest, WrittenObject
from etl.delivery.stage import StageTask
from etl.delivery.upserts.restore import UpsertRestore
from etl.ledger import attempts, deliveries, pipelines
from etl.ledger.offsets import insert_ranges
from etl.ledger.stops import Decision
from etl.ledger.telemetry import lineage
from etl.quality.verdict import Counts, Verdict
from etl.sinks.checksum import MODULUS
from etl.sinks.evolution import changes_of_both
from etl.sinks.lake.marker import Newest, tell
from etl.sinks.lake.uploads import Uploads
from etl.sinks.warehouse.leftovers import drop_idle_staging
from etl.sinks.warehouse.staged_rows import Winners
from etl.sinks.warehouse.table import hold

log = logging.getLogger("sluice")

# A pointer that moved under a draft is drafted again; beside a busy stream that is nothing unusual.
FREE_DRAFTS = 5  # while others may commit; those that follow are made under the pipeline's lock
DRAFTS = 10
# in PostgreSQL's words; where it speaks another language, a cancelled commit is taken for one that took too long
CANCELLED = "due to user request"
RECONNECT_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Commit:
    """All that the transaction writes, but for the pointers."""

    context: DeliveryContext
    batch: Batch
    task: StageTask
    staged: Staged
    verdict: Verdict
    report: str
    entry: Entry
    ahead: CopyAhead | None
    # Rows that are in their tables already, in the transaction that `ahead` began, by whether they are held.
    copied: Mapping[bool, int] = field(default_factory=dict)
    restore: UpsertRestore | None  # what comes back into force where an upsert sink is replayed

    @property
    def winners(self) -> Winners:
        """Return the tasks whose rows count."""
        return Winners(
            tables=self.task.tables,
            tasks=[report.task for report in self.staged.all],
            reported=[part for report in self.staged.all for part in report.packed],
            copied=self.copied,
        )


ColumnChanges = tuple[str, ...]  # a phrase for each column that was added to the tables, or widened


def commit(
    context: DeliveryContext,
    batch: Batch,
    task: StageTask,
    staged: Staged,
    counts: Counts,
    verdict: Verdict,
    decision: Decision | None,
    *,
    ahead: CopyAhead | None = None,
) -> Receipt:
    """Make the staged batch visible in both sinks at once, or in neither; `ahead` may have copied rows already."""
    it = Commit(
        context=context,
        batch=batch,
        task=task,
        staged=staged,
        verdict=verdict,
        report=report_text(verdict, decision),
        entry=_entry(context, batch, task, staged, counts),
        ahead=ahead,
        restore=_restore(context, task, staged),
    )
    for number in range(DRAFTS):
        try:
            columns = _commit_drafted(*_drafted(it)) if number < FREE_DRAFTS else _commit_locked(it)
        except BaseMoved:
            log.info("batch %s: the table moved under the draft; drafting again", batch.batch_id)
        else:
            reached(Step.COMMITTED)
            if context.tells:
                mine = Newest(delivery_id=task.delivery_id, run_id=context.lease.run_id)
                tell(context.sinks.dsn, context.sinks.table, context.lease.pipeline, mine)
            return _receipt(it, columns)
    raise ServiceAway(
        f"Batch {batch.batch_id}: the Iceberg table moved {DRAFTS} times while this run drafted its commit, the last times"
        f" while no run of {context.lease.pipeline} could commit: others write to it, too",
        remedy=f"stop those that commit to table {context.sinks.table.namespace}.{context.sinks.table.name} so often; then"
        f" {context.retry}",
    )


def _drafted(it: Commit) -> tuple[Commit, Drafts]:
    """Write manifest and drafts, side by side, by what the tables have now; return the commit as it follows that."""
    base = read_base(it.context)
    it = replace(it, entry=replace(it.entry, previous=base.previous))
    if it.restore:
        it.restore.stage_missing_changes()
    with Uploads(it.context.sinks.lake) as uploads:
        manifest = uploads.send(it.entry.manifest, _manifest(it).to_json().encode())
        drafts = draft_tables(it.context, it.entry, it.task, it.staged, base=base, uploads=uploads)
        manifest.result()
        reached(Step.MANIFEST_WRITTEN)
    reached(Step.POINTER_DRAFTED)
    return it, drafts


def _commit_drafted(it: Commit, drafts: Drafts) -> ColumnChanges:
    return _transact(it, partial(_write, drafts=drafts))


def _commit_locked(it: Commit) -> ColumnChanges:
    """Draft and commit while all other runs of the pipeline wait: one that commits often would leave no time else.

    What a replay restores is staged before that, but for what still comes in between.
    """
    if it.restore:
        it.restore.stage_missing_changes()

    def draft_and_write(cursor: Cursor, it: Commit) -> ColumnChanges:
        it.context.kind.lock(cursor, it.context.lease, it.entry)
        with telling_of_limit():
            with idling(cursor):
                now, drafts = _drafted(it)
            return _write(cursor, now, drafts)

    return _transact(it, draft_and_write)


def _restore(context: DeliveryContext, task: StageTask, staged: Staged) -> UpsertRestore | None:
    if context.change_log is None:
        return None
    restore = UpsertRestore(
        dsn=context.sinks.dsn,
        pipeline=context.lease.pipeline,
        warehouse=context.sinks.warehouse,
        log=context.change_log,
        task=task,
        brought=[report.task for report in staged.reports],
        replaced=context.kind.supersedes,
        as_found=context.kind.as_found,
    )
    restore.stage_missing_changes()  # nearly all of it, before anything that another commit could make old
    return restore


def _transact(it: Commit, write: Callable[[Cursor, Commit], ColumnChanges]) -> ColumnChanges:
    """Commit what is written, and return what it changed; nothing where the connection broke and it was committed.

    Where rows were copied ahead, the transaction that did so goes on.
    """
    changes: ColumnChanges = ()
    try:
        expected = {False: it.entry.delivered, True: it.entry.quarantined}
        copied = it.ahead.take(it.winners, expected=expected) if it.ahead else None
        if copied is None:
            with transaction(it.context.sinks.dsn) as cursor:
                changes = write(cursor, it)
        else:
            with copied.transaction:
                changes = write(copied.cursor, replace(it, copied=copied.rows))
    except psycopg2.errors.LockNotAvailable as error:
        raise ServiceAway(
            f"Batch {it.entry.batch_id} of {it.entry.pipeline}, not delivered: another session held a lock on"
            f" a table that the commit writes to for longer than lock_timeout ({TIMEOUTS['lock_timeout']})",
            remedy=f"find its holder in pg_locks and pg_stat_activity; then {it.context.retry}",
        ) from error
    except psycopg2.errors.QueryCanceled as error:
        if CANCELLED in str(error):
            raise ServiceAway(
                f"Batch {it.entry.batch_id} of {it.entry.pipeline}, not delivered: somebody cancelled a statement of its"
                f" commit ({in_short(error)})",
                remedy=it.context.retry,
            ) from error
        raise _too_long(it, error, "a statement of its commit, each of which", "statement_timeout") from error
    except psycopg2.Error as error:
        if not is_lost(error):
            raise
        if not _was_committed(it, error):
            if isinstance(error, psycopg2.errors.TransactionTimeout):
                raise _too_long(
                    it, error, "the transaction of its commit, which", "transaction_timeout"
                ) from error
            raise ServiceAway(
                f"The connection to PostgreSQL broke during the commit of batch {it.entry.batch_id} ({str(error).strip()});"
                " the ledger shows that it was not committed",
                remedy=it.context.retry,
            ) from error
    return changes


def _too_long(it: Commit, error: psycopg2.Error, ended: str, limit: str) -> CommitTooLong:
    said, name = in_short(error), it.entry.pipeline
    return CommitTooLong(
        f"Batch {it.entry.batch_id} of {name}, not delivered: PostgreSQL ended {ended} may take"
        f" {TIMEOUTS[limit]} ({said})",
        remedy=f"if somebody cancelled it, {it.context.retry}; if the batch is too large for that,"
        f" {it.context.kind.smaller(name)}",
    )


def _write(cursor: Cursor, it: Commit, drafts: Drafts) -> ColumnChanges:
    """Write all that the one transaction of a commit holds, which takes effect as a whole or not at all.

    Returns which columns of both tables it added and widened. Raises BaseMoved where another commit came between.
    """
    it.context.kind.lock(cursor, it.context.lease, it.entry)
    reached(Step.PIPELINE_LOCKED)
    with telling_of_limit():
        return _write_locked(cursor, it, drafts)


def _write_locked(cursor: Cursor, it: Commit, drafts: Drafts) -> ColumnChanges:
    entry, kind, sinks = it.entry, it.context.kind, it.context.sinks
    # By one that may have moved no pointer; a restore follows the deliveries one by one.
    overtaken = deliveries.last_delivery(cursor, entry.pipeline) != entry.previous
    insert_delivery(cursor, entry, drafts.published, retry=it.context.retry)
    if sinks.mode.only_newest:
        pipelines.delivers_by_replace(cursor, entry.pipeline)
    reached(Step.DELIVERY_INSERTED)
    kind.supersede(cursor, entry, only_newest=sinks.mode.only_newest)
    # After a replay that has lost its place has said why; before rows are moved for a rollback, while others wait.
    if overtaken:
        raise BaseMoved
    insert_inputs(cursor, entry, it.batch.inputs, remedy=kind.delivered_before(entry.pipeline))
    insert_ranges(cursor, entry.pipeline, entry.delivery_id, kind.ranges(cursor, entry, it.batch.ranges))
    insert_files(cursor, entry.delivery_id, "data", it.staged.data_files)
    insert_files(cursor, entry.delivery_id, "quarantine", it.staged.quarantine_files)
    reached(Step.INPUTS_INSERTED)
    with sinks.warehouse.changed(cursor, removes=bool(kind.supersedes)) as columns:
        if it.restore and it.restore.note_new_keys(cursor):  # by what the table has until the next line
            raise BaseMoved
        kind.delete_superseded_rows(cursor, entry, sinks.warehouse)
        if it.restore:
            it.restore.restore(cursor)
        _merge(cursor, it)
    _hold(cursor, it)
    kind.keep_releases(cursor, entry)
    if kind.is_judged:
        insert_quality(cursor, entry.delivery_id, it.verdict, it.report)
    if it.context.lineage:
        of_rows = [(one.name, str(one.type)) for one in sinks.columns]
        lineage.note(cursor, entry.delivery_id, of_rows, it.context.lineage)
    reached(Step.QUALITY_INSERTED)
    drafts.publish(cursor, sinks)
    if not attempts.close_attempt(cursor, it.context.lease, entry.delivery_id, "delivered"):
        raise kind.fenced(entry.pipeline, entry.delivery_id)
    drop_idle_staging(cursor, it.task.tables.names)
    reached(Step.POINTER_SWAPPED)
    return changes_of_both(columns, drafts.columns)


def _merge(cursor: Cursor, it: Commit) -> None:
    it.context.sinks.warehouse.merge(
        cursor, it.winners, expected=it.entry.delivered, identity=it.task.identity
    )
    reached(Step.ROWS_MERGED)


def _hold(cursor: Cursor, it: Commit) -> None:
    hold(cursor, it.winners, expected=it.entry.quarantined, pipeline=it.entry.pipeline)
    reached(Step.QUARANTINE_MERGED)


def _was_committed(it: Commit, cause: psycopg2.Error) -> bool:
    """Wait for the transaction of a commit whose connection broke to end; tell whether it took place.

    Raises CommitUnknown where PostgreSQL can't be asked for 60 s.
    """
    deadline = time.monotonic() + RECONNECT_SECONDS
    while True:
        try:
            with transaction(it.context.sinks.dsn) as cursor:
                pipelines.lock(cursor, it.entry.pipeline)
                return deliveries.is_delivered(cursor, it.entry.delivery_id, it.entry.run_id)
        except (SluiceError, psycopg2.Error):  # a standby that takes over may be read-only yet
            if time.monotonic() > deadline:
                raise CommitUnknown(
                    f"The connection broke during the commit of batch {it.entry.batch_id} ({str(cause).strip()}),"
                    f" and PostgreSQL could not be asked for {RECONNECT_SECONDS} s since",
                    remedy=f"when it is back: {it.context.retry}, which reads the ledger first",
                ) from cause
            time.sleep(0.5)


def _entry(
    context: DeliveryContext,
    batch: Batch,
    task: StageTask,
    staged: Staged,
    counts: Counts,
) -> Entry:
    """Make the entry of the delivery, which follows none yet."""
    delivered = sum(report.delivered for report in staged.all)
    quarantined = sum(report.quarantined for report in staged.all)
    return Entry(
        delivery_id=task.delivery_id,
        pipeline=context.lease.pipeline,
        stream_id=context.stream_id,
        batch_id=batch.batch_id,
        run_id=context.lease.run_id,
        rows_in=delivered + quarantined,
        delivered=delivered,
        quarantined=quarantined,
        malformed=counts.malformed,
        checksum=sum(report.checksum for report in staged.all) % MODULUS,
        quarantine_checksum=sum(report.quarantine_checksum for report in staged.all) % MODULUS,
        suite_digest=context.suite_digest,
        lookups=dict(context.lookups),
        manifest=f"{context.sinks.table.location}/deliveries/{task.delivery_id}-{context.lease.run_id[:8]}.json",
        previous=None,
        kind=context.kind.name,
        released_from=context.kind.released_from,
        watermark_ms=staged.about.watermark_ms if staged.about else None,
        time_ms=staged.about.time_ms if staged.about else None,
        records=staged.records,
        late=staged.late,
        dropped=staged.dropped,
        unknown=dict(staged.unknown),
        missing=dict(staged.missing),
    )


def _manifest(it: Commit) -> DeliveryManifest:
    return DeliveryManifest(
        entry=it.entry,
        first_batch=it.context.first_batch,
        checkpoint=it.context.checkpoint,
        state=tuple(it.context.state),
        inputs=tuple(it.batch.inputs),
        ranges=tuple(it.batch.ranges),
        supersedes=it.context.kind.supersedes,
        data=WrittenObject.each_of(it.staged.data_files),
        quarantine=WrittenObject.each_of(it.staged.quarantine_files),
        success=it.verdict.success,
        rules=it.verdict.results,
        columns=it.verdict.columns,
        report=it.report,
    )


def _receipt(it: Commit, columns: ColumnChanges) -> Receipt:
    entry = it.entry
    return Receipt(
        batch_id=entry.batch_id,
        delivery_id=entry.delivery_id,
        kind=entry.kind,
        rows_in=entry.rows_in,
        records=entry.records if entry.records is not None else entry.rows_in,
        delivered=entry.delivered,
        quarantined=entry.quarantined,
        malformed=entry.malformed,
        late=entry.late or 0,
        dropped=entry.dropped or 0,
        unknown=entry.unknown,
        missing=entry.missing,
        reasons=dict(it.staged.reasons),
        failed=tuple(r.reason for r in it.verdict.results if not r.success),
        columns=columns,
        inputs=len(it.batch.inputs),
        files=len(it.staged.data_files),
    )
