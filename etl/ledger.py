"""Who may commit, what was committed, and from which inputs. All of it is in PostgreSQL.

Every function takes a cursor inside the caller's transaction, so that the caller decides what is atomic.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import psycopg2
from psycopg2.extras import Json

from etl.database import TIMEOUTS, Cursor, constraint_of, row, rows, run
from etl.ending import Ending
from etl.errors import Busy, Fenced, LedgerBehind, TableRefused
from etl.inputs import Input
from etl.verdict import Seen

HEARTBEAT_SECONDS = 5
SILENCE = "30 seconds"  # a holder that was not seen for so long may be robbed; safety does not depend on it


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The right to commit to a pipeline, until another run takes it."""

    pipeline: str
    run_id: str


COMPUTING = " computing "  # between an aggregate's keys and its figures
MODE = " mode"  # after an aggregate's output mode


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """What the ledger knows of one stream."""

    stream_id: str
    pipeline: str
    checkpoint: str | None  # None: beside the stream
    first_batch: int
    state: list[str]  # the operators of its transform that keep state in the checkpoint
    last_batch: int | None  # the newest that was delivered; None: none yet

    @property
    def next_batch(self) -> int:
        return self.first_batch if self.last_batch is None else self.last_batch + 1

    @property
    def closes(self) -> bool:
        """Whether what its transform keeps may be due by the watermark: not in complete mode, which forgets nothing."""
        return bool(self.state) and f"complete{MODE}" not in self.state

    def goes_on_as(self, state: Sequence[str]) -> bool:
        """Whether its checkpoint fits a transform that keeps `state`; one from before figures were kept is told by keys."""
        return len(self.state) == len(state) and all(
            old in (new, new.partition(COMPUTING)[0]) for old, new in zip(self.state, state, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class Newest:
    """A pipeline's newest delivery."""

    delivery_id: int
    data: str  # where it left the metadata of the table
    quarantine: str  # and that of its quarantine


@dataclass(frozen=True, kw_only=True)
class KnownAttempt:
    """The attempt that a delivery's number was given to."""

    run_id: str
    delivered: bool
    adopted: bool  # of the pipeline that asks, and put back by that run


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a person decided on a stopped batch."""

    action: str  # accept or quarantine-all
    who: str
    why: str
    stops: tuple[str, ...]  # what was decided on
    seen: Seen | None  # likewise; None: the batch stopped before that was kept

    def json(self) -> dict[str, Any]:
        """Return what is kept of it with the batch."""
        return {"action": self.action, "who": self.who, "why": self.why, "stops": self.stops}


def holder() -> str:
    """This process, as other runs see it."""
    return f"{socket.gethostname()}/{os.getpid()}"


def register(
    cursor: Cursor, pipeline: str, *, table_schema: str, table_name: str, replaces: bool, anew: str | None
) -> None:
    """Give the pipeline its row, and its table to nobody else, or raise TableRefused.

    `replaces`: each batch takes the place of all before; `anew`: the command of a run that begins anew, None where a
    run goes on from the ledger.
    """
    wanted = {"table_schema": table_schema, "table_name": table_name}
    values = {"pipeline": pipeline, **wanted, "anew": anew}
    known = require_sink(cursor, pipeline, **wanted, replaces=replaces)
    if known and {**wanted, "anew": anew}.items() <= known.items():
        return  # without a lock: the upsert would wait for a commit under way
    try:
        run(cursor, "ledger", "register_pipeline", values)
    except psycopg2.IntegrityError as error:
        if constraint_of(error) != "one_table_one_pipeline":
            raise
        raise TableRefused(
            f"Table {table_schema}.{table_name} of pipeline {pipeline} belongs to another pipeline",
            remedy="name another table in its sink; `sluice status` lists the tables",
        ) from error
    require_sink(cursor, pipeline, **wanted, replaces=replaces)


def require_sink(
    cursor: Cursor, pipeline: str, *, table_schema: str, table_name: str, replaces: bool
) -> dict[str, Any] | None:
    """The pipeline's row, if it has one.

    TableRefused where it has delivered to another table, or by replace and now does in another way.
    """
    known = row(run(cursor, "ledger", "pipeline_row", {"pipeline": pipeline}))
    if known is None or last_delivery(cursor, pipeline) is None:
        return known
    if known["replaces"] and not replaces:
        raise TableRefused(
            f"Pipeline {pipeline} delivered by replace, and its sink now is another: what its batches had replaced would"
            " come back",
            remedy="declare it as Replace() again, or a new pipeline under another name and with another table",
        )
    if (known["table_schema"], known["table_name"]) != (table_schema, table_name):
        raise TableRefused(
            f"Pipeline {pipeline} has delivered to {known['table_schema']}.{known['table_name']}; "
            f"its sink now names {table_schema}.{table_name}",
            remedy="name the old table, or declare a new pipeline under another name",
        )
    return known


def delivers_by_replace(cursor: Cursor, pipeline: str) -> None:
    """From now on no batch of the pipeline may be delivered in another way; the caller holds the row's lock."""
    run(cursor, "ledger", "delivers_by_replace", {"pipeline": pipeline})


def take_lease(cursor: Cursor, pipeline: str) -> Lease:
    """Make this run the only one that may commit, or raise Busy; open attempts of others are fenced.

    A holder with a fresh heartbeat is not robbed, unless it was a process of this host that is dead.
    """
    values = {"pipeline": pipeline, "silence": SILENCE, "run": str(uuid.uuid4()), "holder": holder()}
    lock(cursor, pipeline)
    held = row(run(cursor, "ledger", "lease", values))
    if held and held["fresh"] and not is_dead(held["holder"]):
        raise Busy(
            f"Pipeline {pipeline} is run by {held['holder']}, seen within the last {SILENCE}",
            remedy="wait for that run to end, or stop it; then run again",
        )
    run(cursor, "ledger", "insert_run", values)
    run(cursor, "ledger", "take_lease", values)
    run(cursor, "ledger", "close_dead_runs", values)
    run(cursor, "ledger", "fence_attempts", values)
    fence_dead_beside(cursor, pipeline)
    return Lease(pipeline=pipeline, run_id=values["run"])


def fence_dead_beside(cursor: Cursor, pipeline: str) -> None:
    """End the runs beside the stream whose processes died, and fence their attempts; the caller holds the row's lock."""
    values: dict[str, object] = {"pipeline": pipeline, "silence": SILENCE}
    others = rows(run(cursor, "apart", "others", values))
    dead = [one["run_id"] for one in others if not one["fresh"] or is_dead(one["holder"])]
    run(cursor, "apart", "end_dead", {"dead": dead})
    run(cursor, "apart", "fence", values)


def is_dead(lease_holder: str) -> bool:
    """Whether the holder was a process of this host that has ended, reaped by its parent or not."""
    host, _, pid = lease_holder.partition("/")
    if host != socket.gethostname():
        return False
    try:
        return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def heartbeat(cursor: Cursor, lease: Lease) -> bool:
    """Show that this run lives; False when the lease was taken away."""
    return run(cursor, "ledger", "heartbeat", _of(lease)).rowcount == 1


def stop_asked(cursor: Cursor, lease: Lease) -> str | None:
    """Who asked this run to stop after the batch in flight; None: nobody."""
    found = run(cursor, "ledger", "stop_asked", _of(lease)).fetchone()
    return None if found is None else str(found[0])


def end_run(cursor: Cursor, lease: Lease, ending: Ending) -> None:
    """Record how the run ended: at once, whoever holds the pipeline's row."""
    run(cursor, "ledger", "end_run", {**_of(lease), **vars(ending)})


def give_lease_back(cursor: Cursor, lease: Lease) -> None:
    """If this run still has it. Waits until an open commit of the pipeline has ended."""
    run(cursor, "ledger", "give_lease_back", _of(lease))


def _of(lease: Lease) -> dict[str, object]:
    return {"pipeline": lease.pipeline, "run": lease.run_id}


def register_stream(
    cursor: Cursor,
    pipeline: str,
    stream_id: str,
    *,
    checkpoint: str | None,
    first_batch: int,
    state: Sequence[str] = (),
) -> None:
    """Make `stream_id` the pipeline's current stream: from now on no other may commit, and their stops are forgotten."""
    values = {
        "pipeline": pipeline,
        "stream": stream_id,
        "checkpoint": checkpoint,
        "first_batch": first_batch,
        "state": list(state),
    }
    run(cursor, "ledger", "register_stream", values)
    run(cursor, "ledger", "forget_stops", values)


def forget_stops_from(cursor: Cursor, stream_id: str, batch_id: int) -> None:
    """Forget what stopped a batch of the stream and those after it, and what was decided on them."""
    run(cursor, "ledger", "forget_stops_from", {"stream": stream_id, "batch": batch_id})


def run_on_stream(cursor: Cursor, lease: Lease, stream_id: str) -> None:
    """Note which stream the run works on."""
    run(cursor, "ledger", "run_on_stream", {**_of(lease), "stream": stream_id})


def keep_state(cursor: Cursor, lease: Lease, stream_id: str, state: Sequence[str]) -> bool:
    """Note what a stream that has delivered nothing yet keeps between batches; False: the lease is another's now."""
    values = {**_of(lease), "stream": stream_id, "state": list(state)}
    return run(cursor, "ledger", "keep_state", values).rowcount == 1


def note_topics(cursor: Cursor, stream_id: str, topics: Mapping[str, str]) -> dict[str, str]:
    """The id that each topic had when the stream first looked at it; of those it has not seen yet, as given."""
    found = run(
        cursor, "ledger", "note_topics", {"stream": stream_id, "topics": Json(dict(topics))}
    ).fetchone()
    return dict(found[0]) if found else {}


def batches_in_force(cursor: Cursor, pipeline: str) -> list[tuple[int, int | None, int]]:
    """The live deliveries of batches in the order of their commits: number, watermark (if known) and time, in ms."""
    return run(cursor, "ledger", "batches_in_force", {"pipeline": pipeline}).fetchall()


def live_deliveries(cursor: Cursor, pipeline: str) -> set[int]:
    """The deliveries of the pipeline that no later one has taken the place of."""
    return {number for (number,) in run(cursor, "ledger", "live_deliveries", {"pipeline": pipeline})}


def holding(cursor: Cursor, pipeline: str) -> set[int]:
    """The deliveries of the pipeline of whose rows some are held."""
    return {number for (number,) in run(cursor, "ledger", "holding", {"pipeline": pipeline})}


def stream_state(cursor: Cursor, stream_id: str) -> StreamState | None:
    found = row(run(cursor, "ledger", "stream_row", {"stream": stream_id}))
    return None if found is None else StreamState(**found)


def current_stream(cursor: Cursor, pipeline: str) -> StreamState | None:
    """The stream that the pipeline last ran on, or None before its first run."""
    found = row(run(cursor, "ledger", "pipeline_row", {"pipeline": pipeline}))
    return stream_state(cursor, found["current_stream"]) if found and found["current_stream"] else None


def open_attempt(cursor: Cursor, lease: Lease, stream_id: str, batch_id: int) -> int:
    """Reserve a delivery id. Commit this before the first object is written: the sweeper never touches
    what PostgreSQL does not know."""
    values = {**_of(lease), "stream": stream_id, "batch": batch_id}
    number = run(cursor, "ledger", "open_attempt", values).fetchone()
    assert number is not None
    return int(number[0])


def adopt_attempt(
    cursor: Cursor, lease: Lease, delivery_id: int, stream_id: str, batch_id: int, *, was: str
) -> None:
    """Make a lost attempt of run `was` known again, under the number that its rows carry.

    Busy if the number was given out meanwhile.
    """
    values = {**_of(lease), "delivery": delivery_id, "stream": stream_id, "batch": batch_id, "was": was}
    if run(cursor, "ledger", "adopt_attempt", values).rowcount != 1:
        raise Busy(
            f"Delivery {delivery_id} of {lease.pipeline} was lost, and its number was given to another run just now",
            remedy=f"`sluice recover {lease.pipeline}` again",
        )


def known_attempts(cursor: Cursor, pipeline: str, deliveries: Sequence[int]) -> dict[int, KnownAttempt]:
    """The attempts, of any pipeline, that these numbers were given to as far as PostgreSQL knows."""
    run(cursor, "ledger", "known_attempts", {"pipeline": pipeline, "deliveries": list(deliveries)})
    return {one.pop("delivery_id"): KnownAttempt(**one) for one in rows(cursor)}


def unknown_streams(cursor: Cursor, streams: Sequence[str]) -> list[str]:
    """Which of these PostgreSQL does not know."""
    run(cursor, "ledger", "known_streams", {"streams": list(streams)})
    known = {stream for (stream,) in cursor.fetchall()}
    return [one for one in streams if one not in known]


def know_stream(cursor: Cursor, pipeline: str, stream_id: str, *, checkpoint: str) -> None:
    """Make a stream known that is no longer the pipeline's current one."""
    run(
        cursor, "ledger", "know_stream", {"pipeline": pipeline, "stream": stream_id, "checkpoint": checkpoint}
    )


def skip_numbers(cursor: Cursor, number: int) -> None:
    """Never give out a delivery id up to `number` again: a restored sequence starts over."""
    run(cursor, "ledger", "skip_numbers", {"number": number})


def pending_outcomes(cursor: Cursor, lease: Lease) -> set[str]:
    """How the runs ended since the last one that came to its own end: a recover that broke off settled nothing."""
    return {outcome for (outcome,) in run(cursor, "ledger", "pending_outcomes", _of(lease))}


def close_attempt(cursor: Cursor, delivery_id: int, outcome: str) -> None:
    run(cursor, "ledger", "close_attempt", {"delivery": delivery_id, "outcome": outcome})


def delivery_of_batch(cursor: Cursor, stream_id: str, batch_id: int) -> int | None:
    """The delivery id of a batch that is delivered already."""
    found = row(run(cursor, "ledger", "delivery_of_batch", {"stream": stream_id, "batch": batch_id}))
    return None if found is None else int(found["delivery_id"])


def is_delivered(cursor: Cursor, delivery_id: int) -> bool:
    return run(cursor, "ledger", "delivery_exists", {"delivery": delivery_id}).fetchone() is not None


def last_delivery(cursor: Cursor, pipeline: str) -> int | None:
    found = run(cursor, "ledger", "last_delivery", {"pipeline": pipeline}).fetchone()
    return None if found is None else int(found[0])


def newest(cursor: Cursor, pipeline: str) -> Newest | None:
    """The pipeline's newest delivery; None before the first."""
    found = row(run(cursor, "ledger", "newest", {"pipeline": pipeline}))
    return None if found is None else Newest(**found)


def inputs_of(cursor: Cursor, delivery_id: int) -> list[Input]:
    return [
        Input(**found)
        for found in rows(run(cursor, "ledger", "inputs_of_delivery", {"delivery": delivery_id}))
    ]


def live_inputs(cursor: Cursor, pipeline: str) -> list[Input]:
    """Every input that is in a live delivery: what a new checkpoint must not read again."""
    return [Input(**found) for found in rows(run(cursor, "ledger", "live_inputs", {"pipeline": pipeline}))]


def lock(cursor: Cursor, pipeline: str) -> dict[str, Any] | None:
    """Lock the pipeline's row and return it: waits until an open commit of it has ended, or raises Busy."""
    try:
        return row(run(cursor, "ledger", "lock_pipeline", {"pipeline": pipeline}))
    except psycopg2.errors.LockNotAvailable as error:
        raise Busy(
            f"A commit of pipeline {pipeline} is under way, for longer than lock_timeout",
            remedy="wait for it to end, then run again",
        ) from error


def lock_staged(cursor: Cursor, pipeline: str) -> dict[str, Any] | None:
    """As `lock`, for as long as any transaction of ours may take: what is staged is not given up for another's commit."""
    run(cursor, "ledger", "wait_for_locks", {"patience": TIMEOUTS["transaction_timeout"]})
    found = lock(cursor, pipeline)
    run(cursor, "ledger", "wait_for_locks", {"patience": TIMEOUTS["lock_timeout"]})
    return found


def lock_for_commit(cursor: Cursor, lease: Lease, stream_id: str, batch_id: int) -> None:
    """Lock the pipeline's row and make sure that this run may commit exactly this batch now.

    Raises Fenced when the lease or the stream is another's, LedgerBehind when the stream's last delivery
    is not the batch before this one: then PostgreSQL went back in time while this run was alive.
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


def record_stop(
    cursor: Cursor,
    pipeline: str,
    stream_id: str,
    batch_id: int,
    stops: Sequence[str],
    report: str,
    *,
    seen: Seen,
    lapsed: str,
) -> None:
    values = {
        "pipeline": pipeline,
        "stream": stream_id,
        "batch": batch_id,
        "stops": list(stops),
        "report": report,
        "suite_digest": seen.suite_digest,
        "lookups": Json(seen.lookups),
        "share": seen.share,
        "broken": Json(seen.broken),
        "lapsed": lapsed or None,
    }
    run(cursor, "ledger", "record_stop", values)


def decision(cursor: Cursor, stream_id: str, batch_id: int) -> Decision | None:
    found = row(run(cursor, "ledger", "decision", {"stream": stream_id, "batch": batch_id}))
    if found is None:
        return None
    kept = {name: found[name] for name in ("suite_digest", "lookups", "share", "broken")}
    return Decision(
        action=found["decision"],
        who=found["decided_by"],
        why=found["why"],
        stops=tuple(found["stops"]),
        seen=None if kept["suite_digest"] is None else Seen(**kept),
    )


def undecide(cursor: Cursor, stream_id: str, batch_id: int) -> None:
    """Forget the decision on a stopped batch, which stays stopped."""
    run(cursor, "ledger", "undecide", {"stream": stream_id, "batch": batch_id})
