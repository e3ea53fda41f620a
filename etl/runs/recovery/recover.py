"""The remedy for a checkpoint that is lost, damaged, or out of step with the ledger.

Nothing is lost and nothing comes twice: what the lake still has of deliveries that PostgreSQL lost is
committed again, then a new checkpoint is seeded with exactly the inputs that are live in the ledger; where the
transform keeps state, all of them run through it once more. The next run reads every other file that has landed. Of
a source that can't be read again there is nothing else to read: the next run begins a stream of its own.
The old checkpoint is left where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from etl.common.database import Cursor, transaction
from etl.common.errors import NeedsPerson
from etl.delivery.batch import Receipt
from etl.ledger import deliveries, leases, offsets, streams
from etl.ledger.diagnosis import NEED_ANOTHER_CHECKPOINT
from etl.ledger.leases import Lease
from etl.pipeline import Pipeline
from etl.runs.heartbeat import claim, leased
from etl.runs.live_streams import new_stream, went_back
from etl.runs.preflight import know_streams, mismatch, seeded_stream, unknown_streams
from etl.runs.recovery.lost_deliveries import again, is_missed, lost_deliveries, put_back
from etl.runs.recovery.state_rebuild import Told, rebuilt_stream, rebuilt_topics
from etl.runs.recovery.stranded import refuse_stranded
from etl.runs.recovery.topic_seeds import AcceptedGaps, seeded_topics, skip_gaps
from etl.runs.spark_session import a_session
from etl.runs.workspace import Workspace
from etl.sinks.lake import marker
from etl.spark.checkpoint.reader import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from etl.sources.kafka.source import KafkaSource


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """What `recover` did."""

    pipeline: str
    problem: str | None  # what was wrong; None: nothing, and nothing was done
    put_back: tuple[Receipt, ...] = ()  # deliveries that only the lake still had
    again: tuple[str, ...] = ()  # replays and releases that PostgreSQL lost, and how to have each again
    stream: str | None = None  # the new stream
    seen: int = 0  # inputs that the new checkpoint will not read again; of topics: partitions that it knows
    gone: tuple[str, ...] = ()  # what is on record as gone now


def recover(
    workspace: Workspace,
    pipeline: Pipeline,
    *,
    told: Told = lambda done, of: None,  # noqa: ARG005
    accepted: AcceptedGaps | None = None,
    spark: SparkSession | None = None,
) -> Recovered:
    """Make the pipeline ready to run again, or raise having changed nothing that a rerun can't repeat.

    `told` hears of each batch that runs again, where a state has to be made anew; only then, and for a pipeline of
    topics, Spark is started. What Kafka has no longer is left out only when that is `accepted`.
    """
    dsn = workspace.services.postgres
    lease = claim(dsn, pipeline)
    with leased(dsn, lease):
        if pipeline.topics:
            with a_session(workspace, spark) as found:
                return _recover_topics(workspace, pipeline, lease, told, accepted, found)
        return _recover(workspace, pipeline, lease, told, spark)


def _recover(
    workspace: Workspace, pipeline: Pipeline, lease: Lease, told: Told, spark: SparkSession | None
) -> Recovered:
    problem = _problem(workspace, pipeline, lease)
    if problem is None:
        return Recovered(pipeline=pipeline.name, problem=None)
    mended = _mended(workspace, pipeline, lease, problem)
    stream_id, seen = _next_stream(workspace, pipeline, lease, told, spark)
    return replace(mended, stream=stream_id, seen=seen)


def _mended(workspace: Workspace, pipeline: Pipeline, lease: Lease, problem: str) -> Recovered:
    """Put back the deliveries that only the lake still had; of replays and releases, say how to have each again."""
    dsn, table = workspace.services.postgres, workspace.lake.table(pipeline.table)
    found = lost_deliveries(dsn, workspace.lake, pipeline, marker.read(table))
    receipts = tuple(
        put_back(dsn, workspace.lake, pipeline, lease, one) for one in found.lost if one.of_the_stream
    )
    refuse_stranded(dsn, pipeline, found.left, workspace.settings.landing)
    know_streams(dsn, workspace.checkpoints(pipeline))
    marker.settle(dsn, table, pipeline.name)
    mended = Recovered(pipeline=pipeline.name, problem=problem, put_back=receipts)
    everything = [*found.lost, *found.left]
    known = {one.delivery_id: one for one in everything if not one.known}
    with transaction(dsn) as cursor:
        live = {one.path for one in deliveries.live_inputs(cursor, pipeline.name)}
        live_ones, holding = (
            f(cursor, pipeline.name) for f in (deliveries.live_deliveries, deliveries.holding)
        )
    beside = [one for one in found.lost if not one.of_the_stream]
    beside += [one for one in found.left if is_missed(one, known, live_ones, holding)]
    return replace(mended, again=tuple(again(one, known, live) for one in beside))


def _recover_topics(
    workspace: Workspace,
    pipeline: Pipeline,
    lease: Lease,
    told: Told,
    accepted: AcceptedGaps | None,
    spark: SparkSession,
) -> Recovered:
    """Recover a pipeline of topics; where it needs a new checkpoint, that begins at the ledger's offsets."""
    from etl.runs.stateful import kept
    from etl.sources.kafka.source import KafkaSource
    from etl.sources.open import open_source

    dsn = workspace.services.postgres
    source = open_source(spark, pipeline, workspace.settings, models=workspace.models)
    assert isinstance(source, KafkaSource)

    def found_wrong() -> str | None:
        return _problem(workspace, pipeline, lease) or _unreadable(workspace, pipeline, source)

    problem = found_wrong()
    if problem is None:
        return Recovered(pipeline=pipeline.name, problem=None)
    mended = _mended(workspace, pipeline, lease, problem)
    with transaction(dsn) as cursor:
        known = streams.current_stream(cursor, pipeline.name)
    stream = None
    state = kept(pipeline, source.shape()) if known else ()
    if known and (known.state or state):
        if found_wrong() is None:  # what was put back was all that its checkpoint was ahead by
            return replace(mended, stream=known.stream_id)
        if known.goes_on_as(state):
            stream = skip_gaps(dsn, workspace.checkpoints(pipeline), source, accepted, known)
        stream = stream or rebuilt_topics(workspace, pipeline, lease, told, source, accepted, known)
    if stream is None:
        stream = seeded_topics(dsn, workspace.checkpoints(pipeline), source, accepted, known)
    gone = tuple(map(str, stream.gone))
    return replace(mended, stream=stream.stream_id, seen=stream.partitions, gone=gone)


def _unreadable(workspace: Workspace, pipeline: Pipeline, source: KafkaSource) -> str | None:
    """Say why Spark can't go on, though checkpoint and ledger fit together; return None if it can."""
    with transaction(workspace.services.postgres) as cursor:
        known = streams.current_stream(cursor, pipeline.name)
        reached = offsets.reached(cursor, pipeline.name)
        noted = streams.note_topics(cursor, known.stream_id, {}) if known else {}
    if known is None:
        return None
    checkpoint = workspace.checkpoints(pipeline).of(known.stream_id)
    try:
        at = source.known(checkpoint, known.next_batch, reached, noted)
        source.require_readable(checkpoint, known.next_batch, at)
    except NeedsPerson as error:
        return error.seen
    return None


def _next_stream(
    workspace: Workspace, pipeline: Pipeline, lease: Lease, told: Told, spark: SparkSession | None
) -> tuple[str, int]:
    """Return the id of the stream to go on with, and how many files its checkpoint counts as read."""
    dsn = workspace.services.postgres
    if not pipeline.replayable:
        return new_stream(dsn, workspace.checkpoints(pipeline)), 0
    with transaction(dsn) as cursor:
        known = streams.current_stream(cursor, pipeline.name)
        changed = "StateChanged" in leases.pending_outcomes(cursor, lease)
    if (known and known.state) or changed:
        if known and _problem(workspace, pipeline, lease) is None:
            with transaction(dsn) as cursor:  # what was put back was all that its checkpoint was ahead by
                return known.stream_id, len(deliveries.live_inputs(cursor, pipeline.name))
        if rebuilt := rebuilt_stream(workspace, pipeline, lease, told, spark):
            return rebuilt
    return seeded_stream(dsn, workspace.checkpoints(pipeline), pipeline, workspace.settings.landing)


def _problem(workspace: Workspace, pipeline: Pipeline, lease: Lease) -> str | None:
    dsn = workspace.services.postgres
    checkpoints = workspace.checkpoints(pipeline)
    if lost := marker.went_back(dsn, workspace.lake, pipeline):
        return lost.seen
    if not pipeline.replayable:
        found = went_back(dsn, checkpoints)
        return found.seen if found else None
    with transaction(dsn) as cursor:
        known = streams.current_stream(cursor, pipeline.name)
        pending = _pending(cursor, lease)
    if known is None:
        present = checkpoints.present()
        return f"the ledger never saw the streams {', '.join(present)} run" if present else None
    if unknown := unknown_streams(dsn, checkpoints):
        return unknown.seen
    checkpoint: Checkpoint = checkpoints.of(known.stream_id)
    if not checkpoint.exists and known.last_batch is None and known.first_batch == 0:
        return None
    if misfit := mismatch(dsn, known, checkpoint, pipeline, workspace.settings.landing):
        return misfit.seen
    if pending:
        return f"the last run ended with {' and '.join(sorted(pending))}"
    return None


def _pending(cursor: Cursor, lease: Lease) -> set[str]:
    """Return the outcomes, since the last run that came to its own end, that leave the checkpoint of no more use."""
    return leases.pending_outcomes(cursor, lease) & NEED_ANOTHER_CHECKPOINT
