"""`sluice recover`: forward from the lake where somebody wants it, then a new stream with a seeded checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .checks import unknown
from .guards import Guard, Guards
from .protocol import Go, Move, commit, drafted, refusal, take_lease
from .state import EMPTY, NOTHING, Attempt, Checkpoint, Fate, Inputs, Object, Recover, RecoverAt, State
from .sweeper import settled


def recoverer(state: State, guards: Guards, alive: int) -> Iterator[Move]:
    """Yield the start of a recover, needed or not."""
    if not state.budget.recovers or len(state.drivers) + len(state.recovers) >= alive:
        return
    if state.locked() or not (state.postgres.current or state.folders):
        return
    budget = replace(state.budget, recovers=state.budget.recovers - 1)
    postgres = state.postgres
    if Guard.RECOVER_LEASE in guards:
        postgres = take_lease(state, postgres, guards)
    me = Recover(at=RecoverAt.LEASED, token=postgres.lease)
    if Guard.SEED_LOCKED not in guards:
        me = replace(me, seed=postgres.live_inputs())
    recovers = ordered(*state.recovers, me)
    after = replace(state, budget=budget, postgres=postgres, recovers=recovers)
    yield Move(actor="recover", note=f"starts, token {me.token}", after=after)


def ordered(*recovers: Recover) -> tuple[Recover, ...]:
    return tuple(sorted(recovers, key=lambda me: (me.token, me.at, me.stream)))


def recover(state: State, me: Recover, guards: Guards) -> Iterator[Move]:
    """Yield one recover's next moves: commit a batch again from the lake, register the new stream, write its checkpoint."""
    others = list(state.recovers)
    others.remove(me)
    actor = f"recover {me.token}"

    def go(now: Recover | None, note: str, **changes: Any) -> Move:
        recovers = ordered(*others, now) if now else tuple(others)
        return Move(actor=actor, note=note, after=replace(state, recovers=recovers, **changes))

    match me.at:
        case RecoverAt.LEASED:
            yield from draft_forward(state, me, guards, go)
            yield from mend(state, me, guards, go)
        case RecoverAt.MENDED:
            yield from register(state, me, guards, go)
        case RecoverAt.DRAFTED:
            yield from lock_forward(state, me, guards, go)
        case RecoverAt.LOCKED:
            yield from commit_forward(state, me, go)
        case RecoverAt.REGISTERED:
            folder = Checkpoint(stream=me.stream, sources=((1, me.seed),), offsets=((0, 1),), mark=0)
            yield go(
                None,
                f"writes the checkpoint of stream {me.stream}, seed {sorted(me.seed)}",
                folders=state.with_folder(me.stream, folder),
            )
    if state.budget.crashes:
        yield go(None, "CRASH", budget=replace(state.budget, crashes=state.budget.crashes - 1))


def forwardable(state: State, item: Object, guards: Guards) -> bool:
    """Tell whether the lake still has this batch, it follows the ledger's last one, and nobody may be deleting it."""
    if Guard.FORWARD_SPARES in guards and item.attempt in settled(state):
        return False
    if Guard.NUMBER_UNIQUE in guards and item.number in state.postgres.numbers():
        return False
    return item.stream == state.postgres.current and item.batch == state.postgres.last_batch(item.stream) + 1


def lost_for_good(state: State, me: Recover, guards: Guards) -> Inputs | None:
    """Return the files that only the lake's objects have any more; None where such an object can be put back first."""
    delivered = {row.attempt for row in state.postgres.deliveries}
    lost = NOTHING
    for item in state.data:
        gone = item.inputs - state.landed - state.postgres.live_inputs() - state.named
        if not gone or item.attempt in delivered:
            continue
        if forwardable(state, item, guards) and not item.inputs & state.postgres.live_inputs():
            return None
        lost |= gone
    return lost


def mend(state: State, me: Recover, guards: Guards, go: Go) -> Iterator[Move]:
    """Name what is lost for good; then let nothing tell of a loss any more: neither a stream's folder nor the marker.

    Named, a person takes the rows from the objects, and recover goes on. Where there is nothing of all that, it
    registers the new stream at once.
    """
    lost = lost_for_good(state, me, guards) if Guard.RECOVER_NAMES in guards else NOTHING
    if lost is None:
        return
    streams = frozenset((stream, 0) for stream in unknown(state, state.postgres))
    postgres = replace(state.postgres, streams=state.postgres.streams | streams)
    marker = postgres.newest if state.marker else 0
    if not lost and postgres == state.postgres and marker == state.marker:
        yield from register(state, me, guards, go)
        return
    note = f"names {sorted(lost)}, knows {sorted(streams)}, settles the marker"
    yield go(
        replace(me, at=RecoverAt.MENDED), note, postgres=postgres, marker=marker, named=state.named | lost
    )


def draft_forward(state: State, me: Recover, guards: Guards, go: Go) -> Iterator[Move]:
    """Draft metadata that includes a batch which the lake has and the ledger lost."""
    for item in sorted(state.data, key=lambda item: item.attempt):
        if (
            not forwardable(state, item, guards)
            or item.inputs & state.postgres.live_inputs()
            or state.locked()
        ):
            continue
        attempt, postgres = state.fresh_attempt(), state.postgres
        if Guard.FORWARD_ATTEMPT in guards:
            if postgres.lease != me.token:
                continue
            row = Attempt(attempt=attempt, token=me.token, fate=Fate.OPEN)
            postgres = replace(postgres, attempts=postgres.attempts | {row})
        draft = drafted(postgres.pointer, item, attempt)
        yield go(
            replace(me, at=RecoverAt.DRAFTED, attempt=attempt, base=postgres.pointer, forwarded=item),
            f"drafts batch {item.batch} again, with attempt {item.attempt}'s objects",
            postgres=postgres,
            metadata=state.metadata | {draft},
        )


def forwarded(me: Recover) -> Recover:
    return replace(me, at=RecoverAt.LEASED, attempt=0, base=EMPTY, forwarded=None)


def lock_forward(state: State, me: Recover, guards: Guards, go: Go) -> Iterator[Move]:
    """Lock the pipeline's row to commit the batch again, with the same checks as a driver."""
    item, postgres = me.forwarded, state.postgres
    if item is None or state.locked():
        return
    checks = guards if Guard.FORWARD_ATTEMPT in guards else guards - {Guard.ATTEMPT_OPEN}
    refused = refusal(postgres, token=me.token, attempt=me.attempt, item=item, guards=checks)
    if not refused and not forwardable(state, item, guards):
        refused = "the sweeper may delete it"
    if not refused and Guard.POINTER_CAS in guards and postgres.pointer != me.base:
        refused = "the pointer moved"
    if refused:
        yield go(None if refused == "Fenced" else forwarded(me), refused)
    else:
        yield go(replace(me, at=RecoverAt.LOCKED), "locks the pipeline's row")


def commit_forward(state: State, me: Recover, go: Go) -> Iterator[Move]:
    """COMMIT of the batch that the ledger had lost."""
    if me.forwarded is not None:
        draft = drafted(me.base, me.forwarded, me.attempt)
        after = commit(state.postgres, item=me.forwarded, draft=draft)
        yield go(forwarded(me), f"commits batch {me.forwarded.batch} again", postgres=after)


def register(state: State, me: Recover, guards: Guards, go: Go) -> Iterator[Move]:
    """Under the lock: the lease is still ours, the new stream becomes the current one, the live inputs its seed."""
    if state.locked():
        return
    postgres = state.postgres
    if Guard.RECOVER_RECHECK in guards and postgres.lease != me.token:
        yield go(None, "Fenced")
        return
    stream = state.fresh_stream()
    seed = postgres.live_inputs() if Guard.SEED_LOCKED in guards else me.seed
    after = replace(postgres, current=stream, streams=postgres.streams | {(stream, 1)})
    now = replace(me, at=RecoverAt.REGISTERED, stream=stream, seed=seed)
    yield go(now, f"registers stream {stream}, seed {sorted(seed)}", postgres=after)
