"""One run of a pipeline: lease, preflight, session, query, summary.

The run delivers every batch that the landing has, in order, each exactly once, and stops at the first that
it may not deliver. Then it ends, or stays up and delivers what lands meanwhile until it is asked to stop.
Whatever ends it, the next run goes on from the ledger.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg2
from pyarrow import fs

from etl import ledger, marker, warehouse
from etl.batch import Receipt
from etl.bucket import ensure_bucket
from etl.checkpoint import Checkpoint, FilelessCheckpoint, open_checkpoint
from etl.checkpoint_topics import TopicCheckpoint
from etl.database import Cursor, cancel_statements, migrate, session
from etl.ending import Ending
from etl.errors import SluiceError, Stopped
from etl.lake import Lake
from etl.ledger import Lease
from etl.live import begun_stream, promise, require_follow, run_command
from etl.models import Models
from etl.objects import ObjectStore
from etl.outage import outages_told
from etl.pipeline import Pipeline, Replace
from etl.places import filesystem
from etl.preflight import Checkpoints, awaited_files, ready_stream, unknown_streams
from etl.services import Services
from etl.settings import Settings, load_settings
from etl.stay import Stay
from etl.steps import Listener, Step, reached
from etl.stream import StreamRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("sluice")

Progress = Callable[[Receipt], None]
STOPPED = "stopped"  # the outcome of a run that was asked to, and ended after a whole batch


@dataclass(kw_only=True)
class Summary:
    """What a run did, as `sluice run --json` prints it."""

    pipeline: str
    stream: str
    run: str
    batches: int = 0
    deliveries: list[int] = field(default_factory=list)
    rows_in: int = 0
    records: int = 0  # that were read
    delivered: int = 0
    quarantined: int = 0
    malformed: int = 0
    late: int = 0  # records that came behind the watermark, or without a time: held, or left to the transform
    dropped: int = 0  # rows, or groups of them, that came behind the watermark and are in neither sink
    reasons: Counter[str] = field(default_factory=Counter)  # held rows by reason
    failed: Counter[str] = field(default_factory=Counter)  # batches by expectation that failed
    seconds: float = 0.0
    outcome: str = "done"
    unreported: list[int] = field(default_factory=list)  # deliveries that no Airflow run has told of yet
    unreported_rows: int = 0  # that these delivered
    unreported_quarantined: int = 0  # that these held
    snapshot_id: int | None = None  # of the newest of them
    replaced: list[int] = field(default_factory=list)  # deliveries that were replaced, and that likewise
    released: list[int] = field(default_factory=list)  # held rows that a release took, by their numbers

    def add(self, receipt: Receipt) -> None:
        if receipt.delivered_before:
            return
        self.batches += 1
        self.deliveries.append(receipt.delivery_id)
        self.rows_in += receipt.rows_in
        self.records += receipt.records
        self.delivered += receipt.delivered
        self.quarantined += receipt.quarantined
        self.malformed += receipt.malformed
        self.late += receipt.late
        self.dropped += receipt.dropped
        self.reasons.update(receipt.reasons)
        self.failed.update(receipt.failed)

    def json(self) -> dict[str, Any]:
        return {**vars(self), "reasons": dict(self.reasons), "failed": dict(self.failed)}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a pipeline runs: the settings, and the services that they lead to."""

    settings: Settings
    services: Services

    @classmethod
    def open(cls, settings: Settings | None = None) -> Place:
        """Start what the settings (None: those in force) embed, and put its credentials where the AWS chain finds them."""
        from etl import services

        settings = settings or load_settings()
        found = services.up(settings)
        os.environ.update(found.environment)
        return cls(settings=settings, services=found)

    @property
    def lake(self) -> Lake:
        store = ObjectStore(endpoint=self.services.s3_endpoint, region=self.services.s3_region)
        return Lake(self.services.lake, store)

    @property
    def models(self) -> Models:
        return Models(dsn=self.services.postgres, lake=self.lake)

    def checkpoints(self, pipeline: Pipeline) -> Checkpoints:
        """The pipeline's checkpoints: one folder a stream, below `checkpoints`/<pipeline>."""
        folder = f"{self.settings.checkpoints.rstrip('/')}/{pipeline.name}"
        return Checkpoints(
            pipeline=pipeline.name,
            of=lambda stream_id: open_checkpoint(
                f"{folder}/{stream_id}",
                sources=len(pipeline.sources),
                kind=_kind_of(pipeline),
            ),
            present=lambda: _folders(folder),
        )


def _kind_of(pipeline: Pipeline) -> type[Checkpoint]:
    if not pipeline.replayable:
        return FilelessCheckpoint
    return TopicCheckpoint if pipeline.topics else Checkpoint


def _folders(folder: str) -> list[str]:
    store, path = filesystem(folder)
    found = store.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(one.base_name for one in found if one.type == fs.FileType.Directory)


def run(
    place: Place,
    pipeline: Pipeline,
    *,
    progress: Progress = lambda _: None,
    spark: SparkSession | None = None,
    on_step: Listener | None = None,
    began: Callable[[str], None] = lambda _: None,
    stay: Stay | None = None,
) -> Summary:
    """Deliver all that has landed. `spark` is used as it is and left running; None starts one of our own.

    `began` is told the run's id, once it has the lease. `stay` says whether the run stays up for what lands later.
    """
    dsn, started, stay = place.services.postgres, time.monotonic(), stay or Stay()
    require_follow(pipeline, stay)
    ensure_bucket(place.services.lake, place.lake.store)
    lease = claim(dsn, pipeline)
    with leased(dsn, lease, stay, began):
        return _deliver_all(place, pipeline, lease, started, progress, spark, on_step, stay)


def _deliver_all(
    place: Place,
    pipeline: Pipeline,
    lease: Lease,
    started: float,
    progress: Progress,
    spark: SparkSession | None,
    on_step: Listener | None,
    stay: Stay,
) -> Summary:
    dsn = place.services.postgres
    stream_id = _stream_of_run(place, pipeline)
    with session(dsn) as cursor:
        ledger.run_on_stream(cursor, lease, stream_id)
    summary = Summary(pipeline=pipeline.name, stream=stream_id, run=lease.run_id)

    def received(receipt: Receipt) -> None:
        summary.add(receipt)
        progress(receipt)

    stream = StreamRun(
        place=place,
        pipeline=pipeline,
        lease=lease,
        stream_id=stream_id,
        received=received,
        on_step=on_step,
        stay=stay,
        awaited=awaited_files(pipeline, place.checkpoints(pipeline).of(stream_id), place.settings.landing),
    )
    if stay.every is None and stream.nothing_new():
        return _ended(summary, started)
    try:
        with outages_told(), a_session(place, spark) as found:
            stream.to_its_end(found)
            stream.require_read()
    except SluiceError as error:
        summary.outcome = type(error).__name__
        error.done = _ended(summary, started)
        raise
    if stay.heeded:
        log.info("%s has stopped, asked by %s", pipeline.name, stay.asked_by)
        summary.outcome = STOPPED
    return _ended(summary, started)


def _stream_of_run(place: Place, pipeline: Pipeline) -> str:
    """The one to go on with; where what was read can't be read again, a new one, and it is said what that means."""
    dsn, checkpoints = place.services.postgres, place.checkpoints(pipeline)
    refuse_lost(place, pipeline)
    if pipeline.replayable:
        if problem := unknown_streams(dsn, checkpoints):
            raise problem
        return ready_stream(dsn, checkpoints, pipeline, place.settings.landing)
    stream_id = begun_stream(dsn, checkpoints)
    log.warning("%s. This run begins stream %s", promise(pipeline), stream_id)
    return stream_id


def refuse_lost(place: Place, pipeline: Pipeline) -> None:
    """LedgerBehind where the lake has a delivery that PostgreSQL has lost: what comes next would be built on less."""
    if problem := marker.went_back(place.services.postgres, place.lake, pipeline):
        raise problem


def _ended(summary: Summary, started: float) -> Summary:
    summary.seconds = round(time.monotonic() - started, 3)
    return summary


def claim(dsn: str, pipeline: Pipeline) -> Lease:
    """Make the pipeline known to an up-to-date ledger and take its lease, or raise Busy."""
    migrate(dsn)
    with session(dsn) as cursor:
        make_known(cursor, pipeline)
        lease = ledger.take_lease(cursor, pipeline.name)
    reached(Step.LEASE_TAKEN)
    return lease


def make_known(cursor: Cursor, pipeline: Pipeline) -> None:
    """To the ledger, with its table; one that is known stays as it is."""
    anew = None if pipeline.replayable else run_command(pipeline)
    ledger.register(cursor, pipeline.name, **_sink(pipeline), anew=anew)


def require_sink(cursor: Cursor, pipeline: Pipeline) -> None:
    """TableRefused where what was delivered is elsewhere than the declaration says."""
    ledger.require_sink(cursor, pipeline.name, **_sink(pipeline))


def _sink(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "table_schema": pipeline.table_schema,
        "table_name": pipeline.table_name,
        "replaces": isinstance(pipeline.sink, Replace),
    }


@contextmanager
def leased(
    dsn: str, lease: Lease, stay: Stay | None = None, began: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """Keep the lease's heartbeat going, and give the lease back with the outcome.

    What the runs before left in staging goes first. `stay` is told when the run is asked to stop; `began` is told the
    run's id, before anything else: should that fail, the lease is given back as well.
    """
    stop, stay = threading.Event(), stay or Stay()

    def beat() -> None:
        while not stop.wait(ledger.HEARTBEAT_SECONDS):
            try:
                with session(dsn) as cursor:
                    if not ledger.heartbeat(cursor, lease):
                        log.warning("this run of %s was given up: it was silent for too long", lease.pipeline)
                        stay.lost = True
                        return
                    stay.ask(ledger.stop_asked(cursor, lease))
            except (SluiceError, psycopg2.Error) as error:
                log.warning("the heartbeat of %s failed: %s", lease.pipeline, error)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    ending = Ending.by(None)
    stopped: Stopped | None = None
    try:
        with outages_told():
            began(lease.run_id)
            drop_left(dsn, lease.pipeline)
            yield
        if stay.heeded:
            ending = Ending(outcome=STOPPED)
    except BaseException as error:
        stopped = Stopped.behind(error)
        ending = Ending.by(stopped or error)
        if stopped is not None:
            raise stopped from None
        raise
    finally:
        stop.set()
        thread.join()
        if stopped is not None:
            cancel_statements()  # of the batch in flight, whose transaction holds what the lease's end changes
        _end(dsn, lease, ending)


def _end(dsn: str, lease: Lease, ending: Ending) -> None:
    try:
        with session(dsn) as cursor:
            ledger.end_run(cursor, lease, ending)
        with session(dsn) as cursor:
            ledger.give_lease_back(cursor, lease)
    except (SluiceError, psycopg2.Error) as error:
        log.warning("the lease of %s could not be given back, it will lapse: %s", lease.pipeline, error)


def drop_left(dsn: str, pipeline: str) -> None:
    """Remove the staging tables of attempts that can't commit any more; one that is still written to stays."""
    try:
        with session(dsn) as cursor:
            left = warehouse.staging_left(cursor, pipeline)
        busy = warehouse.drop_staging_left(dsn, left)
    except (SluiceError, psycopg2.Error) as error:  # such as a table of another role
        log.warning("what earlier attempts of %s left in staging could not be dropped: %s", pipeline, error)
        return
    for table in busy:
        log.warning("staging table %s is still written to; the next run or `sluice sweep` drops it", table)


@contextmanager
def a_session(place: Place, given: SparkSession | None) -> Iterator[SparkSession]:
    """The session that is given, left running; or one of our own, stopped at the end."""
    if given is not None:
        yield given
        return
    import pyspark.sql  # noqa: F401 - wholly, before another thread imports parts of it

    from etl.quality.gx import registered
    from etl.sparksession import start

    # Great Expectations takes seconds to import, Spark's JVM to start: side by side.
    # Great Expectations, and Python's view of Spark's moments, go by the zone of the process: a verdict must not.
    os.environ["TZ"] = "UTC"
    time.tzset()
    suites = threading.Thread(target=registered, name="suites", daemon=True)
    suites.start()
    spark = start(place.settings, place.services)
    try:
        suites.join()
        yield spark
    finally:
        try:
            spark.stop()
        except Exception as error:  # noqa: BLE001 - its JVM is gone; what ended the run matters more
            log.debug("Spark could not be stopped: %s", error)
