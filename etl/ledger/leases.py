"""Leases: a run holds its pipeline while its heartbeat arrives or its process lives."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from etl.common.database import Cursor, row, rows
from etl.common.errors import Busy, Fenced, LedgerBehind
from etl.common.outcome import RunOutcome
from etl.common.statements import Statements
from etl.ledger.pipelines import lock, lock_staged, take_up
from etl.ledger.streams import stream_state

STATEMENTS = Statements(__name__)

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


def process() -> str:
    """Return what tells this process from any other that has its name: a kernel's boot, a PID namespace and a start.

    HAZARD: two containers may have one host name, and processes of the same numbers.
    """
    return f"{_place()} {_started(os.getpid())}"


def _place() -> str:
    """Return where a process number means the same process as here: the kernel's boot and the PID namespace."""
    with suppress(OSError):  # other systems have no such files, and no such namespaces
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    return ""


def _started(pid: int) -> str:
    """Return when a process began, in ticks since the boot; nothing where that is not known, or it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]
    return ""


def take_lease(cursor: Cursor, pipeline: str) -> Lease:
    """Make this run the only one that may commit, and fence open attempts of others; or raise Busy.

    A holder with a fresh heartbeat is not robbed, unless its process is known to be dead.
    """
    run_id = str(uuid.uuid4())
    lock(cursor, pipeline)
    held = row(STATEMENTS.execute(cursor, "lease", pipeline=pipeline, silence=SILENCE))
    if held and held["fresh"] and not is_dead(held["holder"], held["process"]):
        raise Busy(
            f"Pipeline {pipeline} is run by {held['holder']}, seen within the last {SILENCE}",
            remedy=f"wait until that run ends, or `sluice stop {pipeline}`; then run again",
        )
    STATEMENTS.execute(
        cursor, "insert_run", run=run_id, pipeline=pipeline, holder=holder(), process=process()
    )
    STATEMENTS.execute(cursor, "take_lease", pipeline=pipeline, run=run_id)
    take_up(cursor, pipeline)
    STATEMENTS.execute(cursor, "close_dead_runs", pipeline=pipeline, run=run_id)
    STATEMENTS.execute(cursor, "fence_attempts", pipeline=pipeline)
    fence_dead_beside(cursor, pipeline)
    return Lease(pipeline=pipeline, run_id=run_id)


def record_refused(cursor: Cursor, pipeline: str, ending: RunOutcome) -> None:
    """Record a run that was refused before it could have the lease; of a pipeline that is not known, nothing."""
    STATEMENTS.execute(
        cursor,
        "record_refused",
        run=str(uuid.uuid4()),
        pipeline=pipeline,
        holder=holder(),
        process=process(),
        outcome=ending.outcome,
        message=ending.message,
        remedy=ending.remedy,
    )


def fence_dead_beside(cursor: Cursor, pipeline: str) -> None:
    """End the runs beside the stream whose processes died, and fence their attempts; the caller holds the row's lock."""
    others = rows(STATEMENTS.execute(cursor, "others", pipeline=pipeline, silence=SILENCE))
    dead = [one["run_id"] for one in others if not one["fresh"] or is_dead(one["holder"], one["process"])]
    STATEMENTS.execute(cursor, "end_dead", dead=dead)
    STATEMENTS.execute(cursor, "fence", pipeline=pipeline)


def is_dead(lease_holder: str, its_process: str | None) -> bool:
    """Tell whether the holder was a process that could be seen from here and has ended, reaped by its parent or not.

    Of any other nothing is known.
    """
    host, _, pid = lease_holder.partition("/")
    place, _, started = (its_process or "").rpartition(" ")
    if host != socket.gethostname() or its_process is None or place != _place():
        return False
    try:
        if psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE:
            return True
    except psutil.NoSuchProcess:
        return True
    return _started(int(pid)) not in (started, "")


def heartbeat(cursor: Cursor, lease: Lease) -> bool:
    """Record that this run lives; return False when it may no longer commit.

    That is when its lease was taken away or, beside the stream, when it was ended.
    """
    STATEMENTS.execute(cursor, "heartbeat", pipeline=lease.pipeline, run=lease.run_id)
    return cursor.rowcount == 1


def stop_asked(cursor: Cursor, lease: Lease) -> str | None:
    """Return who asked this run to stop after the batch in flight; None if nobody did."""
    found = STATEMENTS.execute(cursor, "stop_asked", run=lease.run_id).fetchone()
    return None if found is None else str(found[0])


def note_stop(cursor: Cursor, lease: Lease, who: str) -> None:
    """Record who asked this run to stop, for others to see; who asked first stays."""
    STATEMENTS.execute(cursor, "note_stop", run=lease.run_id, who=who)


def end_run(cursor: Cursor, lease: Lease, ending: RunOutcome, *, kind: str | None = None) -> None:
    """Record how the run ended: at once, whoever holds the lock of the pipeline's row.

    A `kind` takes the place of the one that it began with.
    """
    STATEMENTS.execute(
        cursor,
        "end_run",
        run=lease.run_id,
        outcome=ending.outcome,
        message=ending.message,
        remedy=ending.remedy,
        kind=kind,
    )


def give_lease_back(cursor: Cursor, lease: Lease) -> None:
    """Give the lease back if this run still has it. Waits until an open commit of the pipeline has ended."""
    STATEMENTS.execute(cursor, "give_lease_back", pipeline=lease.pipeline, run=lease.run_id)


def run_on_stream(cursor: Cursor, lease: Lease, stream_id: str) -> None:
    """Record which stream the run works on."""
    STATEMENTS.execute(cursor, "run_on_stream", run=lease.run_id, stream=stream_id)


def keep_state(cursor: Cursor, lease: Lease, stream_id: str, state: Sequence[str]) -> bool:
    """Record what a stream that has delivered nothing yet keeps between batches.

    Returns False where nothing was recorded: the lease is another's now, or the stream has delivered.
    """
    STATEMENTS.execute(
        cursor,
        "keep_state",
        pipeline=lease.pipeline,
        run=lease.run_id,
        stream=stream_id,
        state=list(state),
    )
    return cursor.rowcount == 1


def pending_outcomes(cursor: Cursor, lease: Lease) -> set[str]:
    """Return how the stream's runs ended since the last one that came to its own end: done, stopped, or with files unread.

    A recover that broke off settled nothing, so what came before it is still pending.
    """
    STATEMENTS.execute(cursor, "pending_outcomes", pipeline=lease.pipeline, run=lease.run_id)
    return {outcome for (outcome,) in cursor.fetchall()}


def lock_for_commit(cursor: Cursor, lease: Lease, stream_id: str, batch_id: int) -> None:
    """Lock the pipeline's row and make sure that this run may commit exactly this batch now.

    Raises Fenced when the lease or the stream is another's, LedgerBehind when the stream's last delivery is
    not the batch before this one: then PostgreSQL went back in time while this run was alive.
    """
    held = lock_staged(cursor, lease.pipeline)
    if held is None or held.lease_token != lease.run_id:
        raise Fenced(
            f"Batch {batch_id} of {lease.pipeline} was not committed: this run no longer holds the lease"
            f" ({held.lease_token if held else 'the ledger does not know the pipeline'})",
            remedy=f"wait until the other run ends, then `sluice run {lease.pipeline}`",
        )
    if held.current_stream != stream_id:
        raise Fenced(
            f"Batch {batch_id} of {lease.pipeline} was not committed: its stream is now {held.current_stream}",
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
