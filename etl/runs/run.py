"""One run of a pipeline: lease, preflight, session, query, summary.

The run delivers every batch that the landing has, in order, each exactly once, and stops at the first that
it may not deliver. Then it ends, or stays up and delivers what lands meanwhile until it is asked to stop.
Whatever ends it, the next run goes on from the ledger.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from etl.common.database import kept_connections, transaction
from etl.common.errors import SluiceError
from etl.common.outages import raising_service_errors
from etl.common.steps import Listener
from etl.ledger import leases
from etl.ledger.leases import Lease
from etl.pipeline import Pipeline
from etl.quality.suite_file import digest_of
from etl.runs.follow import RunControl, require_follow
from etl.runs.heartbeat import claim, leased
from etl.runs.kinds.open import stream_of
from etl.runs.summary import STOPPED, Progress, Summary
from etl.runs.telemetry.spans import traced
from etl.runs.telemetry.telling import telling_lineage
from etl.runs.workspace import Workspace
from etl.sinks.lake import marker
from etl.sinks.lake.bucket import end_uploads, require_bucket
from etl.spark.launch.faults import require_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.delivery.batch import Receipt


log = logging.getLogger("sluice")


@kept_connections()
@telling_lineage
@traced
def run(
    workspace: Workspace,
    pipeline: Pipeline,
    *,
    progress: Progress = lambda _: None,
    spark: SparkSession | None = None,
    on_step: Listener | None = None,
    began: Callable[[str], None] = lambda _: None,
    control: RunControl | None = None,
) -> Summary:
    """Deliver all that has landed. `spark` is used as it is and left running; None starts one of our own.

    `began` is told the run's id, once it has the lease. `control` says whether the run stays up for what lands later.
    """
    dsn, started, control = workspace.services.postgres, time.monotonic(), control or RunControl()
    require_follow(pipeline, control)
    lease = claim(dsn, pipeline)
    with leased(dsn, lease, control, began):
        return _deliver_all(workspace, pipeline, lease, started, progress, spark, on_step, control)


def _deliver_all(
    workspace: Workspace,
    pipeline: Pipeline,
    lease: Lease,
    started: float,
    progress: Progress,
    spark: SparkSession | None,
    on_step: Listener | None,
    control: RunControl,
) -> Summary:
    _require_ready(workspace, pipeline)
    stream = stream_of(workspace, pipeline)
    refuse_lost(workspace, pipeline)
    stream_id = stream.begin(lease)
    with transaction(stream.dsn) as cursor:
        leases.run_on_stream(cursor, lease, stream_id)
    summary = Summary(pipeline=pipeline.name, stream=stream_id, run=lease.run_id)
    if control.closed:
        stream.look_into_closed(stream_id)
    awaited = stream.awaited(stream_id)
    control.awaited = len(awaited)
    if control.every is None and stream.nothing_new(stream.state(stream_id), awaited):
        stream.remember(stream_id)
        return _ended(summary, started)
    end_uploads(workspace.lake, [pipeline.table_schema])
    from etl.runs.spark_session import a_session
    from etl.runs.stream import StreamRun  # with the writers of both sinks: their import takes a second

    def received(receipt: Receipt) -> None:
        summary.add(receipt)
        progress(receipt)

    stream_run = StreamRun(
        stream=stream,
        lease=lease,
        stream_id=stream_id,
        received=received,
        on_step=on_step,
        control=control,
        awaited=awaited,
    )
    stream_run.refuse_killer()
    local = workspace.settings.spark_master.startswith("local")
    little = local and control.every is None and stream.is_little(stream_id, awaited)
    try:
        with raising_service_errors(), a_session(workspace, spark, queries=False, little=little) as session:
            stream_run.deliver_all(session)
            stream_run.require_read()
    except SluiceError as error:
        summary.outcome = type(error).__name__
        error.done = _ended(summary, started)
        raise
    if not control.heeded:
        stream.remember_delivered(stream_id, awaited, summary.batches)
    else:
        log.info("%s has stopped, asked by %s", pipeline.name, control.stop_requested_by)
        summary.outcome = STOPPED
    return _ended(summary, started)


def _require_ready(workspace: Workspace, pipeline: Pipeline) -> None:
    """Raise SetupError for what can be seen without Spark to keep batches from being delivered, also where none is due.

    A suite that is gone, or a master that is none, would be found with the next file that lands.
    """
    require_bucket(workspace.lake)
    require_master(workspace.settings.spark_master)
    digest_of(pipeline, workspace.settings)


def refuse_lost(workspace: Workspace, pipeline: Pipeline) -> None:
    """Raise LedgerBehind where the lake has a delivery that PostgreSQL has lost.

    What comes next would be built on less.
    """
    if problem := marker.went_back(workspace.services.postgres, workspace.lake, pipeline):
        raise problem


def _ended(summary: Summary, started: float) -> Summary:
    summary.seconds = round(time.monotonic() - started, 3)
    return summary
