"""Takes a run's lease, keeps it by a heartbeat, and gives it back with the run's outcome."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg2

from etl.common.database import Cursor, Pool, cancel_statements, transaction
from etl.common.errors import SluiceError, Stopped, TableRefused
from etl.common.migrations import migrate
from etl.common.outages import raising_service_errors
from etl.common.outcome import RunOutcome
from etl.common.steps import Step, reached, work_on
from etl.ledger import leases, pipelines
from etl.ledger.leases import Lease
from etl.ledger.pipelines import DeclaredSink
from etl.pipeline import Pipeline
from etl.pipeline.replayability import run_command
from etl.runs.follow import RunControl
from etl.runs.summary import STOPPED
from etl.sinks.modes import mode_of
from etl.sinks.warehouse.leftovers import drop_staging_left, staging_left

log = logging.getLogger("sluice")

SIGNAL_SECONDS = 0.5  # until a signal that was heard is on record: what asked for the end may soon kill
# A network that swallows what is sent is noticed, and a new connection tried, before the lease may be taken by another.
UNANSWERED_MS = 2 * leases.HEARTBEAT_SECONDS * 1000


def claim(dsn: str, pipeline: Pipeline) -> Lease:
    """Make the pipeline known to an up-to-date ledger and take its lease, or raise Busy.

    Raises TableRefused, with that on record as a run that failed, where its sink is not the one that it has delivered to.
    """
    migrate(dsn)
    try:
        with transaction(dsn) as cursor:
            make_known(cursor, pipeline)
            lease = leases.take_lease(cursor, pipeline.name)
    except TableRefused as error:
        with transaction(dsn) as cursor:
            leases.record_refused(cursor, pipeline.name, RunOutcome.by(error))
        raise
    reached(Step.LEASE_TAKEN)
    return lease


def make_known(cursor: Cursor, pipeline: Pipeline) -> None:
    """Register the pipeline and its table in the ledger; one that is known stays as it is. Raises TableRefused."""
    anew = None if pipeline.replayable else run_command(pipeline)
    pipelines.register(
        cursor,
        pipeline.name,
        _sink(pipeline),
        anew=anew,
        consumer_lag_limit=pipeline.alert_consumer_lag,
    )


def require_sink(cursor: Cursor, pipeline: Pipeline) -> None:
    """Raise TableRefused where the pipeline has delivered to another table than the declaration names."""
    pipelines.require_sink(cursor, pipeline.name, _sink(pipeline))


def _sink(pipeline: Pipeline) -> DeclaredSink:
    return DeclaredSink(
        table_schema=pipeline.table_schema,
        table_name=pipeline.table_name,
        replaces=mode_of(pipeline.sink).only_newest,
    )


@contextmanager
def leased(
    dsn: str,
    lease: Lease,
    control: RunControl | None = None,
    began: Callable[[str], None] = lambda _: None,
    *,
    failed_as: str | None = None,
) -> Iterator[None]:
    """Keep the lease's heartbeat going, and give the lease back with the outcome.

    A run that does not come to its own end is recorded as one of kind `failed_as`, where that is given: of a
    withdrawal that changed nothing, nothing is to be seen in how the stream's runs end.

    What the runs before left in staging is removed first. `control` is told when the run is asked to stop;
    `began` is told the run's id, before anything else: should that fail, the lease is given back as well.
    """
    stop, control = threading.Event(), control or RunControl()
    work_on(pipeline=lease.pipeline, run=lease.run_id, batch=None, delivery=None)
    beats = (dsn, lease, control, stop)
    thread = threading.Thread(target=_beat_until, args=beats, name="heartbeat", daemon=True)
    thread.start()
    outcome, kind = RunOutcome.by(None), failed_as
    stopped: Stopped | None = None
    try:
        with raising_service_errors():
            log.debug("run %s of %s has begun", lease.run_id, lease.pipeline, extra={"action": "run-began"})
            began(lease.run_id)
            drop_leftover_staging(dsn, lease.pipeline)
            yield
        kind = None
        if control.heeded:
            outcome = RunOutcome(outcome=STOPPED)
    except BaseException as error:
        stopped = Stopped.behind(error)
        outcome = RunOutcome.by(stopped or error)
        if stopped is not None:
            raise stopped from None
        raise
    finally:
        stop.set()
        thread.join()
        if stopped is not None:
            cancel_statements()  # of the batch in flight, whose transaction holds what the lease's end changes
        _end(dsn, lease, outcome, kind)
        log.debug(
            "run %s of %s has ended: %s",
            lease.run_id,
            lease.pipeline,
            outcome.outcome,
            extra={"action": "run-ended", "outcome": outcome.outcome},
        )


def _beat_until(dsn: str, lease: Lease, control: RunControl, stop: threading.Event) -> None:
    """Record every HEARTBEAT_SECONDS, and once at a signal, that the run lives, until `stop` is set or the lease is lost."""
    due, noted = time.monotonic() + leases.HEARTBEAT_SECONDS, False
    with closing(Pool(dsn, tcp_user_timeout=UNANSWERED_MS)) as own:
        while not control.lost and not stop.wait(min(SIGNAL_SECONDS, leases.HEARTBEAT_SECONDS)):
            heard = control.by_signal is not None
            if time.monotonic() >= due or (heard and not noted):
                _beat(own, lease, control)
                due, noted = time.monotonic() + leases.HEARTBEAT_SECONDS, heard


def _beat(own: Pool, lease: Lease, control: RunControl) -> None:
    """Record that the run lives, and tell `control` that the lease is lost or that somebody asks the run to stop."""
    try:
        with own.transaction() as cursor:
            if leases.heartbeat(cursor, lease):
                control.ask_ledger(cursor, lease)
                return
        log.warning(
            "another command ended this run of %s in the ledger: it was silent for too long", lease.pipeline
        )
        control.lost = True
    except (SluiceError, psycopg2.Error) as error:
        log.warning(
            "the heartbeat of %s failed: %s", lease.pipeline, error, extra={"action": "heartbeat-failed"}
        )


def _end(dsn: str, lease: Lease, outcome: RunOutcome, kind: str | None) -> None:
    try:
        with transaction(dsn) as cursor:
            leases.end_run(cursor, lease, outcome, kind=kind)
        with transaction(dsn) as cursor:
            leases.give_lease_back(cursor, lease)
    except (SluiceError, psycopg2.Error) as error:
        log.warning("the lease of %s could not be given back and will lapse: %s", lease.pipeline, error)


def drop_leftover_staging(dsn: str, pipeline: str) -> None:
    """Remove the staging tables of attempts that can't commit any more; one that is still written to stays."""
    try:
        with transaction(dsn) as cursor:
            tables = staging_left(cursor, pipeline)
        busy = drop_staging_left(dsn, tables)
    except (SluiceError, psycopg2.Error) as error:  # such as a table of another role
        log.warning("what earlier attempts of %s left in staging could not be dropped: %s", pipeline, error)
        return
    for table in busy:
        log.warning("staging table %s is still written to; the next run or `sluice sweep` drops it", table)
