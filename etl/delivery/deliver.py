"""Delivers one batch (the body of foreachBatch) into both sinks, in one PostgreSQL transaction, or into neither.

    ledger   already delivered? then done
    stage    one job: rows to S3 and to staging tables, each counted
    judge    the suite's verdict, from the counts
    commit   ledger, inputs, rows, quarantine, verdict and pointers, together

Until the commit no reader of either sink sees anything of the batch; after it every reader of both sees it
whole. This module imports neither pyspark nor Great Expectations.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import psycopg2

from etl.common.database import Cursor, transaction
from etl.common.errors import (
    CommitUnknown,
    ContractBroken,
    Fenced,
    FewerRows,
    InputsChanged,
    InputsUnreadable,
    SluiceError,
    StagingLost,
)
from etl.common.steps import Step, phases_ms, reached, work_on
from etl.common.wording import first_few, pluralize
from etl.delivery.batch import Batch, DeliveryContext, Receipt, Staged
from etl.delivery.commit import commit
from etl.delivery.copy_ahead import CopyAhead
from etl.delivery.ledger_entry import report_text
from etl.delivery.row_filter import HoldPolicy, RowFilter
from etl.delivery.ruling import Ruling, beyond, changed_since, seen_of
from etl.delivery.stage import StageTask
from etl.ledger import attempts, deliveries, leases, stops
from etl.ledger.inputs import LOOKUP_SOURCE
from etl.ledger.offsets import ranges_of
from etl.ledger.stops import FILES_KEPT, SHARE_STOP, UNREADABLE_STOP, Behind, Decision, Seen
from etl.quality.verdict import Counts, Severity, Verdict
from etl.sinks.lake import numbers
from etl.sinks.open import quarantine_columns
from etl.sinks.warehouse.leftovers import drop_idle_staging
from etl.sinks.warehouse.staging import StagingTables
from etl.spark.watermark import LATE

log = logging.getLogger("sluice")

STAGINGS = 2  # a batch whose staging tables PostgreSQL emptied is staged once more


def deliver(context: DeliveryContext, batch: Batch) -> Receipt:
    """Deliver `batch` exactly once, or raise with nothing of it visible in either sink."""
    started = time.monotonic()
    with transaction(context.sinks.dsn) as cursor:
        done = deliveries.delivery_of_batch(cursor, context.stream_id, batch.batch_id)
        if done is not None:
            return _delivered_before(cursor, context, batch, done)
        # Before anything is written: in a ledger that went back in time the attempt's number may be an old one.
        leases.lock_for_commit(cursor, context.lease, context.stream_id, batch.batch_id)
        decision = stops.decision(cursor, context.stream_id, batch.batch_id)
    if decision is not None and (changes := changed_since(decision, context)):
        return _attempts(context, batch, _lapse(context, batch, decision, changes), started)
    return _attempts(context, batch, Ruling.of(context.rules, decision), started)


def deliver_correction(context: DeliveryContext, batch: Batch) -> Receipt:
    """Deliver a replay or a release and take out of force what it names; or raise with nothing changed."""
    assert context.correction is not None
    started = time.monotonic()
    with transaction(context.sinks.dsn) as cursor:
        context.correction.require_in_force(cursor, context.lease.pipeline)
        if context.correction.supersedes:
            context.sinks.warehouse.require_removable(cursor)
    return _attempts(context, batch, Ruling.of(context.rules, None), started)


def _attempts(context: DeliveryContext, batch: Batch, ruling: Ruling, started: float) -> Receipt:
    """Attempt the batch until it is committed: again by another ruling, and once more where its staged rows were lost."""
    lost = 0
    while True:
        try:
            done = _attempt(context, batch, ruling)
        except StagingLost:
            lost += 1
            if lost == STAGINGS:
                raise
            log.warning("batch %s: PostgreSQL lost its staged rows; staging again", batch.batch_id)
            continue
        if isinstance(done, Receipt):
            reached(Step.BATCH_DONE)
            return replace(done, seconds=time.monotonic() - started, phases=phases_ms())
        ruling = done


def _delivered_before(cursor: Cursor, context: DeliveryContext, batch: Batch, delivery_id: int) -> Receipt:
    """Return the receipt of a batch that was delivered before: Spark, which wrote no commit mark, asks again.

    Raises Fenced where the lease is another's, InputsChanged where the checkpoint gives the batch other
    inputs than the ledger recorded.
    """
    if not leases.heartbeat(cursor, context.lease):
        raise Fenced.of(context.lease.pipeline)
    recorded = {one.path for one in deliveries.inputs_of(cursor, delivery_id)}
    recorded |= {one.uri for one in ranges_of(cursor, [delivery_id]) if not one.empty}
    now = {one.path for one in batch.inputs} | {one.uri for one in batch.ranges if not one.empty}
    if recorded != now:
        raise InputsChanged(
            f"Batch {batch.batch_id} of {context.lease.pipeline} was delivered (delivery {delivery_id}) from"
            f" {pluralize(len(recorded), 'file')}, or ranges of offsets; the checkpoint now gives it"
            f" {len(now)}. They differ in"
            f" {first_few(sorted(now ^ recorded))}",
            remedy=f"`sluice recover {context.lease.pipeline}`",
        )
    return Receipt(batch_id=batch.batch_id, delivery_id=delivery_id, delivered_before=True)


def _is_fenced(context: DeliveryContext) -> bool:
    """Tell whether the lease is known to be another's; False where PostgreSQL can't be asked."""
    try:
        with transaction(context.sinks.dsn) as cursor:
            return not leases.heartbeat(cursor, context.lease)
    except (SluiceError, psycopg2.Error):
        return False


def _attempt(context: DeliveryContext, batch: Batch, ruling: Ruling) -> Receipt | Ruling:
    """Stage, judge and commit the batch; where it is to be staged by another ruling, give up and return that."""
    task = _open_attempt(context, batch, ruling.hold)
    try:
        with _ahead(context, task) as ahead:
            staged = _staged(context, batch, task)
            reached(Step.STAGED)
            counts = staged.counts(context.flag_words)
            verdict = _judged(context, batch, counts, staged)
            reached(Step.JUDGED)
            other_ruling = _decided(context, batch, ruling, verdict, seen_of(context, counts, verdict))
            if other_ruling is None:
                _refuse_changed(context, batch)
                return commit(context, batch, task, staged, counts, verdict, ruling.decision, ahead=ahead)
    except Exception as error:
        if not isinstance(error, CommitUnknown):
            _give_up_after(context, task, error)
        if not isinstance(error, SluiceError) and _is_fenced(context):
            # what a zombie sees first is that its staging tables are gone
            raise context.kind.fenced(context.lease.pipeline, task.delivery_id) from error
        raise
    _give_up(context, task, "stopped")
    return other_ruling


def _ahead(context: DeliveryContext, task: StageTask) -> AbstractContextManager[CopyAhead | None]:
    """Return what copies rows while others are staged: of a stream's batch, where a merge does nothing else.

    A batch that failed once may fail each time, and would leave as many dead rows in the table each time. A correction that
    another commit overtakes would copy for nothing.
    """
    if task.tried_before or context.correction is not None or not context.sinks.mode.only_adds:
        return nullcontext()
    return CopyAhead(task=task, warehouse=context.sinks.warehouse)


def _staged(context: DeliveryContext, batch: Batch, task: StageTask) -> Staged:
    try:
        return batch.stage(task)
    except InputsUnreadable as error:  # of a transform that keeps state: there is nothing to be judged
        none = Verdict(
            success=False, stops=error.stops, results=(), quarantined=0, suite_digest=context.suite_digest
        )
        seen = Seen(suite_digest=context.suite_digest, lookups=context.lookups, share=None, broken={})
        _record_stop(context, batch, none, seen, "")
        raise


def _judged(context: DeliveryContext, batch: Batch, counts: Counts, staged: Staged) -> Verdict:
    """Return the suite's verdict, with what staging adds: its stops, for one decision is on all, and the evidence."""
    verdict = batch.judge(counts, staged)
    stops = (*staged.stops, *verdict.stops)
    behind = _behind(context, staged) if any(SHARE_STOP in stop for stop in stops) else None
    return replace(verdict, stops=stops, malformed=staged.most_malformed, behind=behind)


def _behind(context: DeliveryContext, staged: Staged) -> Behind | None:
    """Return the watermark that most held records came behind, and what set it; None where most are held for another."""
    reached = staged.late_behind
    if reached is None or staged.reasons.most_common(1)[0][0] != LATE:
        return None
    ahead = reached > time.time() * 1000
    if context.sinks.mode.only_newest:  # whose older rows are nowhere to go back to
        return Behind(watermark_ms=reached, ahead=ahead, set_by=None)
    with transaction(context.sinks.dsn) as cursor:
        set_by = deliveries.last_before_watermark(cursor, context.lease.pipeline, reached)
        read = deliveries.inputs_of(cursor, set_by) if set_by is not None else ()
    files = [one.path for one in read if one.source != LOOKUP_SOURCE]
    more = max(len(files) - FILES_KEPT, 0)
    return Behind(watermark_ms=reached, ahead=ahead, set_by=set_by, files=files[:FILES_KEPT], more_files=more)


def _open_attempt(context: DeliveryContext, batch: Batch, hold: HoldPolicy) -> StageTask:
    """Reserve the delivery's number and make its first staging tables, before anything is written elsewhere."""
    while (task := _numbered(context, batch, hold)) is None:
        numbers.free_numbers(context.sinks.dsn, context.sinks.lake, context.sinks.pipeline)
    work_on(batch=batch.batch_id, delivery=task.delivery_id)
    reached(Step.ATTEMPT_OPENED)
    return task


def _numbered(context: DeliveryContext, batch: Batch, hold: HoldPolicy) -> StageTask | None:
    """Reserve the delivery's number and make its first staging tables; None where it is not known which numbers are free."""
    with transaction(context.sinks.dsn) as cursor:
        if not numbers.are_free(cursor, context.lease.pipeline):
            return None
        number, tried = attempts.open_attempt(cursor, context.lease, context.stream_id, batch.batch_id)
        return replace(stage_task(cursor, context, batch.batch_id, number, hold), tried_before=tried)


def stage_task(
    cursor: Cursor, context: DeliveryContext, batch_id: int, delivery_id: int, hold: HoldPolicy
) -> StageTask:
    """Return what executors must know of an attempt; make its first staging tables in the caller's transaction."""
    sinks = context.sinks
    tables = StagingTables(
        dsn=sinks.dsn,
        delivery_id=delivery_id,
        run_id=context.lease.run_id,
        merges=sinks.mode.merges_rows,
        restores=context.change_log is not None,
    )
    sinks.warehouse.create_staging(cursor, tables)
    data, quarantine = (
        table.files(table.pointer(cursor) or "", columns, stream_id=context.stream_id, batch_id=batch_id)
        for table, columns in (
            (sinks.table, sinks.columns),
            (sinks.quarantine, quarantine_columns(sinks.columns)),
        )
    )
    return StageTask(
        pipeline=context.lease.pipeline,
        delivery_id=delivery_id,
        stream_id=context.stream_id,
        batch_id=batch_id,
        row_filter=RowFilter.of(sinks.pipeline.sink, sinks.columns, context.flag_words, context.rules, hold),
        data=data,
        quarantine=quarantine,
        store=sinks.lake.store,
        tables=tables,
        on_step=context.on_step,
    )


def _decided(
    context: DeliveryContext, batch: Batch, ruling: Ruling, verdict: Verdict, seen: Seen
) -> Ruling | None:
    """Return None to commit what is staged, or a Ruling to stage the batch again by.

    Raises ContractBroken, or InputsUnreadable.
    """
    hold, decision = ruling.hold, ruling.decision
    if hold.whole is not None:
        return None
    if decision is not None and (more := beyond(decision, verdict, seen)):
        return _lapse(context, batch, decision, more)
    if not verdict.stops:
        return None
    if decision is None:
        raise _stop(context, batch, verdict, seen, ruling.lapsed)
    # The rows that break such a rule, if it is about rows at all, are not known one by one.
    known = {rule.number for rule in hold.rules}
    about_all = [
        result.reason
        for result in verdict.results
        if result.severity == Severity.CRITICAL
        and not result.success
        and (result.unexpected_count is None or result.number not in known)
    ]
    if decision.action == "quarantine-all" and about_all:
        return replace(ruling, hold=replace(hold, whole=about_all[0]))
    return None


def _lapse(context: DeliveryContext, batch: Batch, decision: Decision, changes: Sequence[str]) -> Ruling:
    """Forget a decision that does not cover what the batch now is, and go by the suite alone."""
    with transaction(context.sinks.dsn) as cursor:
        leases.lock_for_commit(cursor, context.lease, context.stream_id, batch.batch_id)
        stops.undecide(cursor, context.stream_id, batch.batch_id)
    lapsed = f"{decision.describe()} no longer holds: {'; '.join(changes)}"
    log.warning("batch %s of %s: %s", batch.batch_id, context.lease.pipeline, lapsed)
    return replace(Ruling.of(context.rules, None), lapsed=lapsed)


def _stop(
    context: DeliveryContext, batch: Batch, verdict: Verdict, seen: Seen, lapsed: str
) -> ContractBroken | InputsUnreadable:
    pipeline, batch_id = context.lease.pipeline, batch.batch_id
    if lapsed and seen.share is not None:
        lapsed += f"; {seen.share:.2%} would be held now"
    if any(UNREADABLE_STOP in stop for stop in verdict.stops):
        _refuse_changed(context, batch)  # such as a file that is still being written
        # The stops name each such file and what is wrong with it.
        _record_stop(context, batch, replace(verdict, success=False, malformed=()), seen, lapsed)
        return context.kind.unreadable(pipeline, batch_id, verdict.stops, lapsed)
    _record_stop(context, batch, verdict, seen, lapsed)
    replayable = context.sinks.pipeline.replayable
    return context.kind.contract_broken(pipeline, batch_id, verdict, lapsed, replayable=replayable)


def _record_stop(context: DeliveryContext, batch: Batch, verdict: Verdict, seen: Seen, lapsed: str) -> None:
    """Put a stop of the stream on record, where a person decides on it."""
    if not context.kind.stops_stream:
        return
    with transaction(context.sinks.dsn) as cursor:
        # A run that was fenced stops nothing: its stream may be one of the past.
        leases.lock_for_commit(cursor, context.lease, context.stream_id, batch.batch_id)
        stops.record_stop(
            cursor,
            context.lease.pipeline,
            context.stream_id,
            batch.batch_id,
            verdict.stops,
            report_text(verdict),
            seen=seen,
            lapsed=lapsed,
            malformed=verdict.malformed,
            behind=verdict.behind,
        )


def _refuse_changed(context: DeliveryContext, batch: Batch) -> None:
    if changes := batch.changed():
        raise context.kind.inputs_changed(context.lease.pipeline, batch.batch_id, changes)


def _give_up(context: DeliveryContext, task: StageTask, outcome: str) -> None:
    """Close an attempt that will not be committed; its objects are the sweeper's."""
    with transaction(context.sinks.dsn) as cursor:
        attempts.close_attempt(cursor, context.lease, task.delivery_id, outcome)
        drop_idle_staging(cursor, task.tables.names)


def _give_up_after(context: DeliveryContext, task: StageTask, error: Exception) -> None:
    """Close an attempt that `error` ended, and never hide that error.

    What can't be closed now, the next run fences; a note on `error` says so.
    """
    try:
        _give_up(
            context,
            task,
            "stopped" if isinstance(error, ContractBroken | InputsUnreadable | FewerRows) else "failed",
        )
    except (SluiceError, psycopg2.Error) as second:
        error.add_note(f"Attempt {task.delivery_id} could not be closed: {second}")
