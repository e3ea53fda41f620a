"""What is compared before a query starts: the checkpoint, and what the ledger knows of its stream.

Every stream has a checkpoint folder of its own, named by its id, so an old one is never overwritten. Nothing
is guessed: where checkpoint and ledger do not fit together, the run stops with the command that mends it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace

from etl.common.database import transaction
from etl.common.errors import (
    CheckpointDamaged,
    CheckpointLost,
    Fenced,
    LedgerAhead,
    LedgerBehind,
    SluiceError,
    StateChanged,
)
from etl.common.wording import first_few
from etl.ledger import deliveries, leases, offsets, pipelines, streams
from etl.ledger.inputs import Input
from etl.ledger.leases import Lease
from etl.ledger.streams import StreamState, current_stream, register_stream, stream_state
from etl.pipeline import Pipeline
from etl.sources.cutoff import before_start, in_stream
from etl.sources.evidence import look, path_of, uri_at
from etl.sources.landing import landed, source_of
from etl.spark.checkpoint.folder import Checkpoints
from etl.spark.checkpoint.reader import Checkpoint
from etl.spark.checkpoint.topics import TopicCheckpoint


def ready_stream(dsn: str, checkpoints: Checkpoints, pipeline: Pipeline, landing: str) -> str:
    """Return the id of the stream that the run may go on with; a pipeline that never ran is given one.

    Raises CheckpointLost, CheckpointDamaged, LedgerBehind or LedgerAhead, having changed nothing.
    """
    with transaction(dsn) as cursor:
        known = current_stream(cursor, checkpoints.pipeline)
    if known is None:
        _refuse_unknown(checkpoints)
        return _first_stream(dsn, checkpoints, before_start(pipeline, landing))
    checkpoint = checkpoints.of(known.stream_id)
    if not checkpoint.exists and known.last_batch is None and known.first_batch == 0:
        # a run was killed between registering its stream and this
        checkpoint.create(known.stream_id, before_start(pipeline, landing))
        return known.stream_id
    if problem := mismatch(dsn, known, checkpoint, pipeline, landing):
        raise problem
    return known.stream_id


def _first_stream(dsn: str, checkpoints: Checkpoints, history: Sequence[Input]) -> str:
    """Register a pipeline's first stream, then make its checkpoint folder; return its id.

    It is registered first, because a folder that the ledger does not know would look like a lost ledger. The
    history that it leaves out makes no batches of its own, which would be without a row.
    """
    stream_id = str(uuid.uuid4())
    checkpoint = checkpoints.of(stream_id)
    with transaction(dsn) as cursor:
        register_stream(cursor, checkpoints.pipeline, stream_id, checkpoint=checkpoint.uri, first_batch=0)
    checkpoint.create(stream_id, history)
    return stream_id


def seeded_stream(dsn: str, checkpoints: Checkpoints, pipeline: Pipeline, landing: str) -> tuple[str, int]:
    """Begin a new current stream whose checkpoint counts exactly the live inputs as read; return its id and how many.

    What the stream leaves out counts as read, too.

    The inputs are read in the transaction that makes the stream current: no other stream can add one later.
    """
    stream_id = str(uuid.uuid4())
    checkpoint = checkpoints.of(stream_id)
    with transaction(dsn) as cursor:
        pipelines.lock(cursor, checkpoints.pipeline)
        register_stream(cursor, checkpoints.pipeline, stream_id, checkpoint=checkpoint.uri, first_batch=1)
        seen = deliveries.live_inputs(cursor, checkpoints.pipeline)
    history = before_start(pipeline, landing, live={one.path for one in seen})
    behind = [replace(one, uri=uri_at(one.path, landing)) for one in by_source(seen, pipeline, landing)]
    checkpoint.seed([*behind, *history], stream_id=stream_id)
    return stream_id, len(seen)


def by_source(seen: Sequence[Input], pipeline: Pipeline, landing: str) -> list[Input]:
    """Return the inputs under the sources that read them as declared now, without those that none reads."""
    found = []
    for one in seen:
        source = source_of(pipeline, one.path, landing)
        if source is not None:
            found.append(replace(one, source=source))
    return found


def _refuse_unknown(checkpoints: Checkpoints) -> None:
    if present := checkpoints.present():
        raise LedgerBehind(
            f"The ledger has never seen pipeline {checkpoints.pipeline} run, but there are checkpoints of its streams"
            f" {first_few(present)}: PostgreSQL went back in time, or it is another one",
            remedy=f"put the right SLUICE_POSTGRES in place, or `sluice recover {checkpoints.pipeline}`",
        )


def unknown_streams(dsn: str, checkpoints: Checkpoints) -> LedgerBehind | None:
    """Return LedgerBehind where PostgreSQL lost a stream, else None: each has its row before its folder is made."""
    present = list(filter(_is_stream, checkpoints.present()))
    with transaction(dsn) as cursor:
        unknown = streams.unknown_streams(cursor, present)
    if not unknown:
        return None
    return LedgerBehind(
        f"There are checkpoints of streams of {checkpoints.pipeline} that the ledger does not know:"
        f" {first_few(unknown)}: PostgreSQL went back in time, or it is another one",
        remedy=f"`sluice recover {checkpoints.pipeline}`, which puts back what the lake still has",
    )


def know_streams(dsn: str, checkpoints: Checkpoints) -> None:
    """Make streams that the ledger has lost known again, as earlier ones.

    Their folders then no longer say that the ledger lost them.
    """
    present = list(filter(_is_stream, checkpoints.present()))
    with transaction(dsn) as cursor:
        for one in streams.unknown_streams(cursor, present):
            streams.know_stream(cursor, checkpoints.pipeline, one, checkpoint=checkpoints.of(one).uri)


def _is_stream(folder: str) -> bool:
    with suppress(ValueError):
        return str(uuid.UUID(folder)) == folder
    return False


def require_same(checkpoint: Checkpoint, stream_id: str, pipeline: str) -> None:
    """Raise CheckpointLost where the checkpoint is no longer the stream's.

    A checkpoint that was replaced under a living query would give it another stream's batches.
    """
    if checkpoint.stream_id != stream_id:
        raise CheckpointLost(
            f"Checkpoint {checkpoint.uri} of {pipeline} was replaced while it was in use: it holds stream"
            f" {checkpoint.stream_id}",
            remedy=f"`sluice recover {pipeline}`",
        )


def require_state(dsn: str, lease: Lease, known: StreamState, state: Sequence[str]) -> None:
    """Raise StateChanged where the transform keeps other state than the one that its checkpoint began with.

    For a stream that has delivered nothing yet, the state is noted instead; raises Fenced where the lease is
    another's now.
    """
    if known.goes_on_as(state):
        return
    if known.first_batch > 0 or known.last_batch is not None:
        before, now = ("; ".join(one) or "none" for one in (known.state, state))
        raise StateChanged.of(
            known.pipeline,
            f"The transform of {known.pipeline} keeps other state than its checkpoint holds, which is {before}; now it"
            f" is {now}",
        )
    with transaction(dsn) as cursor:
        if not leases.keep_state(cursor, lease, known.stream_id, state):
            raise Fenced.of(known.pipeline)


def mismatch(
    dsn: str, known: StreamState, checkpoint: Checkpoint, pipeline: Pipeline, landing: str
) -> SluiceError | None:
    """Return the error that keeps the stream from going on, or None when checkpoint and ledger fit together."""
    return unfit(dsn, known, checkpoint) or _undelivered(dsn, known, checkpoint, pipeline, landing)


def unfit(dsn: str, known: StreamState, checkpoint: Checkpoint) -> SluiceError | None:
    """Return an error if the checkpoint is gone, damaged, another stream's or out of step with the ledger; else None."""
    remedy = f"`sluice recover {known.pipeline}`"
    where = f"Checkpoint {checkpoint.uri} of {known.pipeline}"
    last = "no batch yet" if known.last_batch is None else f"batches up to {known.last_batch}"
    if not checkpoint.exists:
        return CheckpointLost(
            f"{where} is gone; the ledger has {last} of its stream. A new one would deliver them again",
            remedy=remedy,
        )
    if damage := checkpoint.damage() + _state_damage(known, checkpoint):
        return CheckpointDamaged(f"{where} lacks what Spark needs: {first_few(damage)}", remedy=remedy)
    if checkpoint.stream_id != known.stream_id:
        with transaction(dsn) as cursor:
            other = stream_state(cursor, checkpoint.stream_id) if checkpoint.stream_id else None
        owner = f"of pipeline {other.pipeline}" if other else "that the ledger does not know"
        return CheckpointLost(
            f"{where} holds stream {checkpoint.stream_id} {owner}; the ledger has {last} of {known.stream_id}",
            remedy=remedy,
        )
    return _out_of_step(known, checkpoint, where, remedy)


def _state_damage(known: StreamState, checkpoint: Checkpoint) -> list[str]:
    return ["its state is gone"] if known.state and checkpoint.commits and not checkpoint.has_state else []


def _undelivered(
    dsn: str, known: StreamState, checkpoint: Checkpoint, pipeline: Pipeline, landing: str
) -> SluiceError | None:
    """Return an error where the checkpoint counts a file as read that no delivery has, else None.

    Such a file would be lost without a word. Of topics the offsets are compared instead.
    """
    delivered = known.next_batch - 1
    if delivered not in checkpoint.offsets:
        return None
    if isinstance(checkpoint, TopicCheckpoint):
        return _elsewhere(dsn, known, checkpoint, delivered)
    with transaction(dsn) as cursor:
        live = {one.path: one.uri for one in deliveries.live_inputs(cursor, known.pipeline)}
    behind = {path_of(file.uri, landing): file.uri for file in checkpoint.read_until(delivered)}
    lost = sorted(filter(in_stream(pipeline), behind.keys() - live.keys()))
    if not lost:
        return None
    if {behind[path] for path in lost} <= {*live.values()}:
        return CheckpointDamaged(
            f"The landing is now {landing}, and {len(lost)} files were delivered from elsewhere: {first_few(lost)}",
            remedy=f"set SLUICE_LANDING back; or, where they were moved there too, `sluice recover {known.pipeline}`",
        )
    return CheckpointDamaged(
        f"Checkpoint {checkpoint.uri} of {known.pipeline} counts {len(lost)} files as read that no delivery has:"
        f" {first_few(lost)}",
        remedy=f"`sluice recover {known.pipeline}`",
    )


def _elsewhere(
    dsn: str, known: StreamState, checkpoint: TopicCheckpoint, delivered: int
) -> SluiceError | None:
    """Return CheckpointDamaged where the checkpoint's offsets are not the ledger's, else None.

    Records between where the two are would be lost, or come twice, without a word.
    """
    with transaction(dsn) as cursor:
        ledger_at = {
            (one.topic, one.partition): one.reached for one in offsets.reached(cursor, known.pipeline)
        }
    told = [
        (topic, partition, offset)
        for topics in checkpoint.reached(delivered)
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    ]
    seeded = delivered < known.first_batch  # at the beginning of what was never read before
    wrong = [
        f"{topic}/{partition} at {offset}, the ledger at {ledger_at.get((topic, partition), 'none')}"
        for topic, partition, offset in told
        if ledger_at.get((topic, partition), offset if seeded else None) != offset
    ]
    if not wrong:
        return None
    return CheckpointDamaged(
        f"Checkpoint {checkpoint.uri} of {known.pipeline} is elsewhere than what was delivered: {first_few(wrong)}",
        remedy=f"`sluice recover {known.pipeline}`",
    )


def _out_of_step(known: StreamState, checkpoint: Checkpoint, where: str, remedy: str) -> SluiceError | None:
    """Return LedgerBehind or LedgerAhead where checkpoint and ledger are at different batches, else None.

    They fit where the ledger is at the last batch that Spark marked as done, or at the one it was working on.
    """
    before = known.first_batch - 1
    delivered = before if known.last_batch is None else known.last_batch
    planned = max(checkpoint.offsets, default=before)
    done = max(checkpoint.commits, default=before)
    if done > delivered:
        return LedgerBehind(
            f"{where} has finished batch {done}; the ledger's last is {delivered if delivered >= 0 else 'none'}:"
            " PostgreSQL went back in time",
            remedy=remedy,
        )
    if delivered > planned:
        return LedgerAhead(
            f"{where} has planned batches up to {planned if planned >= 0 else 'none'}; the ledger has delivered"
            f" {delivered}: the checkpoint went back in time",
            remedy=remedy,
        )
    return None


def nothing_new(
    pipeline: Pipeline, known: StreamState, checkpoint: Checkpoint, awaited: AbstractSet[str]
) -> bool:
    """Tell whether no batch is unfinished or owed and no file is to be read, so that Spark need not be started.

    What there is on a topic is known through Spark alone: with topics it is False.
    """
    if pipeline.topics or not checkpoint.offsets or not checkpoint.settled:
        return False
    if known.closes and checkpoint.owes:
        return False
    return not awaited


def awaited_files(pipeline: Pipeline, checkpoint: Checkpoint, landing: str) -> set[str]:
    """Return the paths of the landed files that the stream takes and that are in no batch that Spark has planned."""
    return _unplanned(checkpoint, set(filter(in_stream(pipeline), landed(pipeline, landing))), landing)


def passed_over(checkpoint: Checkpoint, awaited: AbstractSet[str], landing: str) -> list[str]:
    """Return the paths of the `awaited` files that no batch has yet, though they are still there; sorted."""
    left = _unplanned(checkpoint, awaited, landing)
    return sorted(one.path for one in look((uri_at(path, landing) for path in left), landing=landing))


def _unplanned(checkpoint: Checkpoint, paths: AbstractSet[str], landing: str) -> set[str]:
    if not paths or not checkpoint.offsets:
        return {*paths}
    behind = {path_of(file.uri, landing) for file in checkpoint.read_until(checkpoint.offsets[-1])}
    return {path for path in paths if path not in behind}
