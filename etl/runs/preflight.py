"""Compares the checkpoint with the ledger's record of its stream, before a query starts.

Every stream has a checkpoint folder of its own, named by its id, so an old one is never overwritten. Nothing is
guessed: where checkpoint and ledger disagree, the run stops with the command that repairs it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress

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
from etl.ledger import leases, streams
from etl.ledger.leases import Lease
from etl.ledger.streams import StreamState, stream_state
from etl.spark.checkpoint.folder import Checkpoints
from etl.spark.checkpoint.reader import Checkpoint


def refuse_unknown(checkpoints: Checkpoints[Checkpoint]) -> None:
    if present := checkpoints.present():
        raise LedgerBehind(
            f"The ledger has never seen pipeline {checkpoints.pipeline} run, but there are checkpoints of its streams"
            f" {first_few(present)}: PostgreSQL went back in time, or SLUICE_POSTGRES names another one",
            remedy=f"correct SLUICE_POSTGRES, or `sluice recover {checkpoints.pipeline}`",
        )


def unknown_streams(dsn: str, checkpoints: Checkpoints[Checkpoint]) -> LedgerBehind | None:
    """Return LedgerBehind where PostgreSQL lost a stream, else None: each has its row before its folder is made."""
    present = list(filter(_is_stream, checkpoints.present()))
    with transaction(dsn) as cursor:
        unknown = streams.unknown_streams(cursor, present)
    if not unknown:
        return None
    return LedgerBehind(
        f"There are checkpoints of streams of {checkpoints.pipeline} that the ledger does not know:"
        f" {first_few(unknown)}: PostgreSQL went back in time, or SLUICE_POSTGRES names another one",
        remedy=f"`sluice recover {checkpoints.pipeline}`, which puts back what the lake still has",
    )


def know_streams(dsn: str, checkpoints: Checkpoints[Checkpoint]) -> None:
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


def unfit(dsn: str, known: StreamState, checkpoint: Checkpoint) -> SluiceError | None:
    """Return an error if the checkpoint is gone, damaged, another stream's or out of step with the ledger; else None."""
    remedy = f"`sluice recover {known.pipeline}`"
    where = f"Checkpoint {checkpoint.uri} of {known.pipeline}"
    last = "no batch yet" if known.last_batch is None else f"batches up to {known.last_batch}"
    if not checkpoint.exists:
        return CheckpointLost(
            f"{where} is gone; the ledger has {last} of its stream. A new checkpoint would deliver its inputs again",
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
