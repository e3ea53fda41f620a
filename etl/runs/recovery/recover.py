"""`sluice recover`: repairs a pipeline whose checkpoint is lost, damaged, or out of step with the ledger.

Nothing is lost and nothing comes twice: what the lake still has of deliveries that PostgreSQL lost is
committed again, then a new checkpoint is seeded with exactly the inputs that are live in the ledger; where the
transform keeps state, all of them run through it once more. The next run reads every other file that has landed. Of
a source that can't be read again there is nothing else to read: the next run begins a stream of its own.
The old checkpoint is left where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etl.common.database import kept_connections, transaction
from etl.common.errors import NeedsPerson
from etl.delivery.batch import Receipt
from etl.ledger import deliveries
from etl.ledger.leases import Lease
from etl.pipeline import Pipeline
from etl.runs.follow import RunControl
from etl.runs.heartbeat import claim, leased
from etl.runs.kinds.base import PipelineStream
from etl.runs.kinds.open import stream_of
from etl.runs.preflight import know_streams
from etl.runs.recovery.base import AcceptedGaps, OnProgress, RecoveryRequest, heeding
from etl.runs.recovery.lost_deliveries import (
    how_to_redo,
    is_missed,
    lost_deliveries,
    restore_delivery,
    skip_lost_commits,
)
from etl.runs.recovery.stranded import refuse_stranded
from etl.runs.workspace import Workspace
from etl.sinks.lake import marker
from etl.sinks.lake.lake import TableLocation
from etl.sinks.lake.marker import Newest
from etl.sources.cutoff import in_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What a signal, or `sluice stop`, leaves that ends a recovery.
PUT_BACK = "what it has put back stays, and the same command goes on from there"


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """What `recover` did."""

    pipeline: str
    problem: str | None  # what was wrong; None: nothing, and nothing was done
    restored: tuple[Receipt, ...] = ()  # deliveries that only the lake still had
    # replays, releases and withdrawals that PostgreSQL lost, and how to have each again
    to_redo: tuple[str, ...] = ()
    stream: str | None = None  # the new stream
    seen: int = 0  # inputs that the new checkpoint will not read again; of topics: partitions that it knows
    counted: str = ""  # the same in words
    gone: tuple[str, ...] = ()  # what is on record as gone now


@kept_connections()
def recover(
    workspace: Workspace,
    pipeline: Pipeline,
    *,
    on_progress: OnProgress = lambda done, of: None,  # noqa: ARG005
    accepted: AcceptedGaps | None = None,
    spark: SparkSession | None = None,
    control: RunControl | None = None,
) -> Recovered:
    """Make the pipeline ready to run again, or raise having changed nothing that a rerun can't repeat.

    `on_progress` hears of each batch that runs again, where a state has to be rebuilt; only then, and for a pipeline of
    topics, Spark is started. Records that Kafka no longer has are skipped only when that is `accepted`. It raises Stopped
    between two of these batches, or two deliveries that it puts back, where `control` is told to stop.
    """
    control = control or RunControl()
    dsn, stream = workspace.services.postgres, stream_of(workspace, pipeline)
    lease = claim(dsn, pipeline)
    command = f"`sluice recover {pipeline.name}`"
    request = RecoveryRequest(
        lease=lease, command=command, on_progress=heeding(control, on_progress), accepted=accepted
    )
    with leased(dsn, lease, control), stream.recovery(request, spark) as recovery:
        problem = recovery.problem()
        if problem is None:
            return Recovered(pipeline=pipeline.name, problem=None)
        mended = _mended(workspace, stream, lease, problem, control)
        control.require_going_on()
        seeded = recovery.next_stream()
    gaps = tuple(map(str, seeded.gone))
    return replace(
        mended, stream=seeded.stream_id, seen=seeded.seen, counted=stream.counted(seeded.seen), gone=gaps
    )


def _mended(
    workspace: Workspace, stream: PipelineStream[Any], lease: Lease, problem: str, control: RunControl
) -> Recovered:
    """Put back the deliveries that only the lake still had; of all others, say how to have each again."""
    pipeline, dsn = stream.pipeline, workspace.services.postgres
    table = TableLocation.of(workspace.lake, pipeline.table)
    newest = marker.read(table)
    on_lake = lost_deliveries(dsn, workspace.lake, pipeline, newest)
    skip_lost_commits(dsn, pipeline, on_lake, newest)
    receipts = []
    for one in on_lake.lost:
        control.require_going_on()
        if one.of_the_stream:
            receipts.append(restore_delivery(dsn, workspace.lake, pipeline, lease, one))
    corrections = [one for one in on_lake.lost if not one.of_the_stream]
    gone = [*on_lake.unrestorable, *corrections]
    try:
        refuse_stranded(dsn, pipeline, gone, workspace.settings.landing, stream.way_back)
    except NeedsPerson:
        if lost := [one for one in gone if one.committed and not one.known]:
            told = Newest(delivery_id=lost[-1].delivery_id, run_id=lost[-1].entry.run_id)
            marker.keep_telling(dsn, table, pipeline.name, told)
        raise
    know_streams(dsn, stream.checkpoints)
    marker.settle(dsn, table, pipeline.name)
    mended = Recovered(pipeline=pipeline.name, problem=problem, restored=tuple(receipts))
    everything = [*on_lake.lost, *on_lake.unrestorable]
    known = {one.delivery_id: one for one in everything if not one.known}
    with transaction(dsn) as cursor:
        live = {one.path for one in deliveries.live_inputs(cursor, pipeline.name)}
        live_ones, holding = (
            f(cursor, pipeline.name) for f in (deliveries.live_deliveries, deliveries.holding)
        )
    had = live.union(
        filter(in_stream(pipeline), (file.path for one in everything for file in one.manifest.inputs))
    )
    corrections += [one for one in on_lake.unrestorable if is_missed(one, known, live_ones, holding, had)]
    return replace(mended, to_redo=tuple(how_to_redo(one, known, had) for one in corrections))
