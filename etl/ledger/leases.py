"""Leases: who may run a pipeline, for as long as its heartbeat is heard or its process lives."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from etl.common.database import Cursor, execute, row, rows
from etl.common.errors import Busy, Fenced, LedgerBehind
from etl.common.outcome import RunOutcome
from etl.ledger.pipelines import lock, lock_staged
from etl.ledger.streams import stream_state

HEARTBEAT_SECONDS = 5
SILENCE = "30 seconds"  # a holder that was not seen for so long may be robbed; safety does not depend on it


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to commit to a pipeline, until another run takes it."""

    pipeline: str
    run_id: str


def holder() -> str:
    """Return the name of this process that other runs see: host/pid."""
    return f"{socket.gethostname()}/{os.getpid()}"


def take_lease(cursor: Cursor, pipeline: str) -> Lease:
    """Make this run the only one that may commit, and fence open attempts of others; or raise Busy.

    A holder with a fresh heartbeat is not robbed, unless it was a process of this host that is dead.
    """
    values = {"pipeline": pipeline, "silence": SILENCE, "run": str(uuid.uuid4()), "holder": holder()}
    lock(cursor, pipeline)
    held = row(execute(cursor, "ledger", "lease", values))
    if held and held["fresh"] and not is_dead(held["holder"]):
        raise Busy(
            f"Pipeline {pipeline} is run by {held['holder']}, seen within the last {SILENCE}",
            remedy="wait for that run to end, or stop it; then run again",
        )
    execute(cursor, "ledger", "insert_run", values)
    execute(cursor, "ledger", "take_lease", values)
    execute(cursor, "ledger", "close_dead_runs", values)
    execute(cursor, "ledger", "fence_attempts", values)
    fence_dead_beside(cursor, pipeline)
    return Lease(pipeline=pipeline, run_id=values["run"])


def fence_dead_beside(cursor: Cursor, pipeline: str) -> None:
    """End the runs beside the stream whose processes died, and fence their attempts; the caller holds the row's lock."""
    values: dict[str, object] = {"pipeline": pipeline, "silence": SILENCE}
    others = rows(execute(cursor, "apart", "others", values))
    dead = [one["run_id"] for one in others if not one["fresh"] or is_dead(one["holder"])]
    execute(cursor, "apart", "end_dead", {"dead": dead})
    execute(cursor, "apart", "fence", values)


def is_dead(lease_holder: str) -> bool:
    """Tell whether the holder was a process of this host that has ended, reaped by its parent or not."""
    host, _, pid = lease_holder.partition("/")
    if host != socket.gethostname():
        return False
    try:
        return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def heartbeat(cursor: Cursor, lease: Lease) -> bool:
    """Record that this run lives; return False when it may no longer commit.

    That is when its lease was taken away or, beside the stream, when it was ended.
    """
    return execute(cursor, "ledger", "heartbeat", key_of(lease)).rowcount == 1


def stop_asked(cursor: Cursor, lease: Lease) -> str | None:
    """Return who asked this run to stop after the batch in flight; None if nobody did."""
    found = execute(cursor, "ledger", "stop_asked", key_of(lease)).fetchone()
    return None if found is None else str(found[0])


def end_run(cursor: Cursor, lease: Lease, ending: RunOutcome) -> None:
    """Record how the run ended: at once, whoever holds the lock of the pipeline's row."""
    execute(cursor, "ledger", "end_run", {**key_of(lease), **vars(ending)})


def give_lease_back(cursor: Cursor, lease: Lease) -> None:
    """Give the lease back if this run still has it. Waits until an open commit of the pipeline has ended."""
    execute(cursor, "ledger", "give_lease_back", key_of(lease))


def key_of(lease: Lease) -> dict[str, object]:
    return {"pipeline": lease.pipeline, "run": lease.run_id}


def run_on_stream(cursor: Cursor, lease: Lease, stream_id: str) -> None:
    """Record which stream the run works on."""
    execute(cursor, "ledger", "run_on_stream", {**key_of(lease), "stream": stream_id})


def keep_state(cursor: Cursor, lease: Lease, stream_id: str, state: Sequence[str]) -> bool:
    """Record what a stream that has delivered nothing yet keeps between batches.

    Returns False where nothing was recorded: the lease is another's now, or the stream has delivered.
    """
    values = {**key_of(lease), "stream": stream_id, "state": list(state)}
    return execute(cursor, "ledger", "keep_state", values).rowcount == 1


def pending_outcomes(cursor: Cursor, lease: Lease) -> set[str]:
    """Return how the stream's runs ended since the last one that came to its own end, done or stopped.

    A recover that broke off settled nothing, so what came before it is still pending.
    """
    return {outcome for (outcome,) in execute(cursor, "ledger", "pending_outcomes", key_of(lease))}


def lock_for_commit(cursor: Cursor, lease: Lease, stream_id: str, batch_id: int) -> None:
    """Lock the pipeline's row and make sure that this run may commit exactly this batch now.

    Raises Fenced when the lease or the stream is another's, LedgerBehind when the stream's last delivery is
    not the batch before this one: then PostgreSQL went back in time while this run was alive.
    """
    held = lock_staged(cursor, lease.pipeline)
    if held is None or held["lease_token"] != lease.run_id:
        raise Fenced(
            f"Batch {batch_id} of {lease.pipeline} was not committed: this run no longer holds the lease"
            f" ({held['lease_token'] if held else 'the ledger does not know the pipeline'})",
            remedy=f"let the other run end, then `sluice run {lease.pipeline}`",
        )
    if held["current_stream"] != stream_id:
        raise Fenced(
            f"Batch {batch_id} of {lease.pipeline} was not committed: its stream is now {held['current_stream']}",
            remedy=f"`sluice run {lease.pipeline}`",
        )
    state = stream_state(cursor, stream_id)
    if state is None or state.next_batch != batch_id:
        last = None if state is None else state.last_batch
        raise LedgerBehind(
            f"Batch {batch_id} of {lease.pipeline} was not committed: the ledger's last batch of this stream is"
            f" {'none' if last is None else last}",
            remedy=f"`sluice recover {lease.pipeline}`",
        )
