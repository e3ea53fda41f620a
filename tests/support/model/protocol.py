"""The protocol's actors. Each function yields every move that its actor could make next.

A move of a driver carries the Step of etl/common/steps.py that it stands for. Steps whose crash leaves the same world
behind are folded into one move: FOLDED says which stands for which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from etl.common.steps import Step

from .checks import behind_marker, numbered, stop
from .guards import Guard, Guards
from .state import (
    EMPTY,
    NOTHING,
    At,
    Attempt,
    Checkpoint,
    Delivery,
    Driver,
    Fate,
    Held,
    Metadata,
    Object,
    Postgres,
    State,
    Waiting,
)

FOLDED: dict[Step, Step] = {
    # an upload shows nothing before it is complete, and staged rows are read by their own attempt only
    Step.OBJECT_OPENED: Step.STAGED,
    Step.ROWS_ENCODED: Step.STAGED,
    Step.ROWS_STAGED: Step.STAGED,
    Step.TASK_COMMITTED: Step.STAGED,
    # invisible until COMMIT, and gone with the transaction
    Step.ROWS_COPIED: Step.STAGED,
    Step.JUDGED: Step.STAGED,
    # recover may take any staged attempt, so the manifest adds nothing
    Step.MANIFEST_WRITTEN: Step.POINTER_DRAFTED,
    # invisible until COMMIT, and gone with the transaction
    Step.DELIVERY_INSERTED: Step.COMMITTED,
    Step.INPUTS_INSERTED: Step.COMMITTED,
    Step.ROWS_MERGED: Step.COMMITTED,
    Step.QUARANTINE_MERGED: Step.COMMITTED,
    Step.QUALITY_INSERTED: Step.COMMITTED,
    Step.POINTER_SWAPPED: Step.COMMITTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    actor: str
    after: State
    note: str
    step: Step | None = None
    lie: str | None = None  # what the actor claims in this move, and is not so

    def __str__(self) -> str:
        return f"{self.actor}: {self.step or ''}{' ' if self.step and self.note else ''}{self.note}"


Go = Callable[..., Move]
"""An actor's own way to say what it does next: (itself afterwards, note, step=…, what else changes=…)."""


# --- what drivers and recover share ---------------------------------------------------------------------------


def take_lease(state: State, postgres: Postgres, guards: Guards) -> Postgres:
    """Take the lease with a new token; every open attempt of another token is fenced."""
    token = state.fresh_token() if Guard.RANDOM_TOKEN in guards else postgres.leases + 1
    leases = 0 if Guard.RANDOM_TOKEN in guards else token
    attempts = frozenset(
        replace(row, fate=Fate.FENCED)
        if row.fate is Fate.OPEN and row.token != token and not row.apart
        else row
        for row in postgres.attempts
    )
    return replace(postgres, lease=token, attempts=attempts, leases=leases)


def refusal(postgres: Postgres, *, token: int, attempt: int, item: Object, guards: Guards) -> str | None:
    """Return why this commit must not happen, as seen under the lock; None when nothing speaks against it."""
    if Guard.TOKEN in guards and postgres.lease != token:
        return "Fenced"
    if Guard.ATTEMPT_OPEN in guards and postgres.fate(attempt) is not Fate.OPEN:
        return "Fenced"
    if Guard.CURRENT_STREAM in guards and postgres.current != item.stream:
        return "CheckpointLost"
    if Guard.BATCH_UNIQUE in guards and (item.stream, item.batch) in {
        (row.stream, row.batch) for row in postgres.deliveries
    }:
        return "delivered already"
    if Guard.CONTINUITY in guards and postgres.last_batch(item.stream) != item.batch - 1:
        return "LedgerBehind"
    if Guard.NUMBER_UNIQUE in guards and item.number in postgres.numbers():
        return "delivery id taken"
    if Guard.INPUTS_UNIQUE in guards and postgres.live_inputs() & item.inputs:
        return "input taken"
    return None


def commit(postgres: Postgres, *, item: Object, draft: Metadata) -> Postgres:
    """Apply the one transaction's effect to both sinks and the ledger."""
    delivery = Delivery(
        stream=item.stream, batch=item.batch, inputs=item.inputs, attempt=item.attempt, number=item.number
    )
    attempts = frozenset(
        replace(row, fate=Fate.DELIVERED) if row.attempt in (item.attempt, draft.owner) else row
        for row in postgres.attempts
    )
    return replace(
        postgres,
        deliveries=postgres.deliveries | {delivery},
        warehouse=tuple(sorted((*postgres.warehouse, *((row, item.attempt) for row in item.rows)))),
        quarantine=postgres.quarantine
        | {Held(row=row, attempt=item.attempt, waiting=Waiting.HELD) for row in item.held},
        pointer=draft,
        attempts=attempts,
    )


def drafted(base: Metadata, item: Object, owner: int) -> Metadata:
    return Metadata(owner=owner, objects=base.objects | {item})


def put(state: State, item: Object, guards: Guards) -> frozenset[Object]:
    """Return the lake's data after a PUT: an object of the same name is overwritten."""
    if Guard.UNIQUE_NAMES in guards:
        return state.data | {item}

    def name(other: Object) -> tuple[int, int, int]:
        return other.stream, other.batch, other.number

    return frozenset(other for other in state.data if name(other) != name(item)) | {item}


# --- the driver -----------------------------------------------------------------------------------------------


def launcher(state: State, guards: Guards, alive: int) -> Iterator[Move]:
    """Airflow, or a person, starts a run: it takes the lease, is checked, and Spark loads the checkpoint."""
    if not state.budget.starts or len(state.drivers) + len(state.recovers) >= alive or state.locked():
        return
    state = replace(state, budget=replace(state.budget, starts=state.budget.starts - 1))
    postgres = take_lease(state, state.postgres, guards)
    stopped = stop(state, postgres, guards)
    if stopped:
        yield Move(
            actor="driver", step=Step.LEASE_TAKEN, note=stopped, after=replace(state, postgres=postgres)
        )
        return
    stream = postgres.current or state.fresh_stream()
    if not postgres.current:
        postgres = replace(postgres, current=stream, streams=postgres.streams | {(stream, 0)})
    checkpoint = state.folder(stream) or Checkpoint(stream=stream)
    postgres = replace(postgres, marker_compared=True)
    driver = replace(load(checkpoint, postgres.lease, stream), suite=state.suite)
    yield Move(
        actor="driver",
        step=Step.LEASE_TAKEN,
        note=f"token {postgres.lease}, stream {stream}, next batch {driver.batch}",
        after=replace(
            state,
            postgres=postgres,
            folders=state.with_folder(stream, checkpoint),
            marker=postgres.newest if state.marker else 0,
            drivers=ordered(*state.drivers, driver),
        ),
    )


def load(checkpoint: Checkpoint, token: int, stream: int) -> Driver:
    """Spark's own start: the last planned batch again unless it is marked, else the one after it."""
    again = checkpoint.last_batch() > checkpoint.mark
    return Driver(
        at=At.PLANNED if again else At.READY,
        token=token,
        stream=stream,
        seen=checkpoint.seen(),
        place=checkpoint.last_source(),
        end=checkpoint.end(),
        batch=checkpoint.last_batch() if again else checkpoint.last_batch() + 1,
        inputs=checkpoint.batches()[-1][1] if again else NOTHING,
    )


def ordered(*drivers: Driver) -> tuple[Driver, ...]:
    """Sort the drivers: their order makes no difference, so it must not make another state."""
    return tuple(sorted(drivers, key=lambda driver: (driver.token, driver.at, driver.attempt, driver.batch)))


def driver(state: State, me: Driver, guards: Guards) -> Iterator[Move]:
    """Yield the next moves of one run."""
    others = list(state.drivers)
    others.remove(me)
    actor = f"driver {me.token}"

    def go(now: Driver | None, note: str = "", step: Step | None = None, **changes: Any) -> Move:
        drivers = ordered(*others, now) if now else tuple(others)
        return Move(actor=actor, step=step, note=note, after=replace(state, drivers=drivers, **changes))

    match me.at:
        case At.READY:
            yield from plan(state, me, go)
        case At.PLANNED:
            yield from open_attempt(state, me, guards, go)
        case At.OPENED:
            yield stage(state, me, guards, go)
        case At.STAGED:
            base = state.postgres.pointer
            draft = drafted(base, me.object(), me.attempt)
            now = replace(me, at=At.DRAFTED, base=base)
            yield go(now, step=Step.POINTER_DRAFTED, metadata=state.metadata | {draft})
        case At.DRAFTED:
            yield from lock(state, me, guards, go)
        case At.LOCKED:
            yield from finish_transaction(state, me, guards, go)
        case At.HALF:
            after = replace(state.postgres, pointer=drafted(me.base, me.object(), me.attempt))
            yield go(replace(me, at=At.COMMITTED, base=EMPTY), "second transaction", postgres=after)
        case At.UNKNOWN:
            yield from find_out(state, me, guards, go)
        case At.COMMITTED:
            yield from done(state, me, go)
    if state.budget.crashes:
        budget = replace(state.budget, crashes=state.budget.crashes - 1)
        yield go(None, "CRASH", budget=budget)


def plan(state: State, me: Driver, go: Go) -> Iterator[Move]:
    """Spark lists the landing folder and writes sources/ and offsets/, or finds nothing new and ends."""
    left, folder = state.landed - me.seen, state.folder(me.stream)
    taken = [frozenset((min(left),)), left] if left else [NOTHING]
    for files in dict.fromkeys(taken):
        place = me.place + 1 if files else me.place
        if place == me.end:
            yield end(state, me, go)
        elif (
            place < me.end
            or folder is None
            or me.batch in dict(folder.offsets)
            or (files and place in dict(folder.sources))
        ):
            yield go(None, "dies: its checkpoint was changed under it")
        else:
            sources = (*folder.sources, (place, files)) if files else folder.sources
            changed = replace(
                folder,
                sources=tuple(sorted(sources)),
                offsets=tuple(sorted((*folder.offsets, (me.batch, place)))),
            )
            inputs = changed.files(me.end, place)
            now = replace(me, at=At.PLANNED, inputs=inputs, seen=me.seen | files, place=place, end=place)
            folders = state.with_folder(me.stream, changed)
            yield go(now, f"plans batch {me.batch} of {sorted(inputs)}", folders=folders)


def end(state: State, me: Driver, go: Go) -> Move:
    """Spark sees no new data and the run ends, saying that everything landed is delivered.

    What a withdrawal has taken out since it took the lease, the next run reads again.
    """
    missing = state.to_deliver() - state.postgres.live_inputs()
    if state.postgres.lease != me.token:
        missing -= state.postgres.taken_out()
    lie = (
        f"the run says done, and rows of {sorted(missing)} are missing"
        if missing and not me.restored
        else None
    )
    return Move(actor=f"driver {me.token}", note="ends: all done", after=go(None).after, lie=lie)


def open_attempt(state: State, me: Driver, guards: Guards, go: Go) -> Iterator[Move]:
    """foreachBatch begins: a batch that the ledger has is passed over, else an attempt's row is committed."""
    postgres = state.postgres
    found = [row for row in postgres.deliveries if (row.stream, row.batch) == (me.stream, me.batch)]
    if found:
        if Guard.SKIP_NEEDS_LEASE in guards and postgres.lease != me.token:
            yield go(None, "Fenced")
        elif Guard.INPUTS_SAME in guards and found[0].inputs != me.inputs:
            yield go(None, "InputsChanged")
        else:
            yield go(replace(me, at=At.COMMITTED, attempt=0), "delivered already")
        return
    if state.locked():
        return
    if postgres.lease != me.token and Guard.TOKEN in guards:
        yield go(None, "Fenced")
        return
    if not postgres.marker_compared and (lost := behind_marker(state, postgres, guards)):
        yield go(None, lost)
        return
    attempt = state.fresh_attempt()
    postgres, number = numbered(state, guards)
    row = Attempt(attempt=attempt, token=me.token, fate=Fate.OPEN)
    postgres = replace(postgres, attempts=postgres.attempts | {row}, marker_compared=True)
    now = replace(me, at=At.OPENED, attempt=attempt, number=number)
    yield go(now, f"attempt {attempt}", step=Step.ATTEMPT_OPENED, postgres=postgres)


def stage(state: State, me: Driver, guards: Guards, go: Go) -> Move:
    """Write the batch's objects and staging tables; of a file that is gone there is nothing to write."""
    if not me.inputs <= state.landed:
        return go(None, "InputsChanged: files are gone", step=Step.STAGED)
    return go(replace(me, at=At.STAGED), step=Step.STAGED, data=put(state, me.object(), guards))


def lock(state: State, me: Driver, guards: Guards, go: Go) -> Iterator[Move]:
    """Yield the opening of the transaction: the pipeline's row is locked, and everything looked at again."""
    if state.locked():
        return
    postgres = state.postgres
    refused = refusal(postgres, token=me.token, attempt=me.attempt, item=me.object(), guards=guards)
    if refused in ("delivered already", "delivery id taken"):
        yield go(replace(me, at=At.PLANNED, base=EMPTY), refused, step=Step.PIPELINE_LOCKED)
    elif refused:
        yield go(None, refused, step=Step.PIPELINE_LOCKED)
    elif Guard.POINTER_CAS in guards and postgres.pointer != me.base:
        yield go(replace(me, at=At.STAGED, base=EMPTY), "the pointer moved", step=Step.PIPELINE_LOCKED)
    else:
        yield go(replace(me, at=At.LOCKED), step=Step.PIPELINE_LOCKED)


def finish_transaction(state: State, me: Driver, guards: Guards, go: Go) -> Iterator[Move]:
    """COMMIT: it succeeds, or the connection breaks and the server decides alone."""
    draft = drafted(me.base, me.object(), me.attempt)
    after = commit(state.postgres, item=me.object(), draft=draft)
    if Guard.ONE_TRANSACTION in guards:
        now = replace(me, at=At.COMMITTED, base=EMPTY)
        yield go(now, f"batch {me.batch} of stream {me.stream}", step=Step.COMMITTED, postgres=after)
    else:
        half = replace(after, pointer=state.postgres.pointer)
        yield go(replace(me, at=At.HALF), "warehouse only", step=Step.COMMITTED, postgres=half)
    if state.budget.lost_acks and not state.ghost:
        budget = replace(state.budget, lost_acks=state.budget.lost_acks - 1)
        yield go(replace(me, at=At.UNKNOWN), "CONNECTION LOST in COMMIT", ghost=me, budget=budget)


def find_out(state: State, me: Driver, guards: Guards, go: Go) -> Iterator[Move]:
    """Yield what follows a lost COMMIT: wait for the old transaction's lock, read the ledger, go on from what it says."""
    if Guard.UNKNOWN_READS not in guards:
        yield go(replace(me, at=At.COMMITTED, base=EMPTY), "assumes that it committed")
    elif Guard.UNKNOWN_WAITS not in guards or not state.locked():
        mine = [row for row in state.postgres.deliveries if (row.stream, row.batch) == (me.stream, me.batch)]
        if mine:
            yield go(replace(me, at=At.PLANNED, base=EMPTY), "reads: delivered")
        else:
            yield go(replace(me, at=At.DRAFTED), "reads: not delivered")


def done(state: State, me: Driver, go: Go) -> Iterator[Move]:
    """The lake's marker is written, foreachBatch returns and Spark writes its commit mark."""
    folder, marker = state.folder(me.stream), told(state, me.attempt)
    if folder is None:
        yield go(None, "dies: its checkpoint is gone", step=Step.BATCH_DONE, marker=marker)
        return
    if folder.mark >= me.batch and folder.last_batch() != me.batch:
        yield go(None, "dies: the mark is there already", step=Step.BATCH_DONE, marker=marker)
        return
    now = replace(me, at=At.READY, batch=me.batch + 1, inputs=NOTHING, attempt=0, number=0)
    folders = state.with_folder(me.stream, replace(folder, mark=max(folder.mark, me.batch)))
    note = f"Spark marks batch {me.batch}"
    yield go(now, note, step=Step.BATCH_DONE, folders=folders, marker=marker)


def told(state: State, attempt: int) -> int:
    """Return what the marker names once a delivery was told to it: the newest, unless it tells of one that is lost."""
    if not state.marked or not attempt or (state.marker and not state.postgres.has(state.marker)):
        return state.marker
    return state.postgres.newest if state.postgres.has(attempt) else attempt


def server(state: State) -> Iterator[Move]:
    """PostgreSQL, left alone with a transaction whose client is gone."""
    if state.ghost is None:
        return
    ghost = state.ghost
    draft = drafted(ghost.base, ghost.object(), ghost.attempt)
    after = commit(state.postgres, item=ghost.object(), draft=draft)
    yield Move(actor="server", note="commits it", after=replace(state, postgres=after, ghost=None))
    yield Move(actor="server", note="rolls it back", after=replace(state, ghost=None))
