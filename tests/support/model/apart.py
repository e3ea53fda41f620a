"""Beside the stream: a replay takes the place of live deliveries, a release lets one row out of quarantine.

Neither takes the stream's lease. What it may commit hangs on its own attempt, and on what it replaces or lets out.
A withdrawal takes the stream's last deliveries out, and with the lease makes a stream the current one that reads again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .checks import behind_marker, unknown
from .guards import Guard, Guards
from .protocol import Go, Move, put, take_lease, told
from .state import (
    EMPTY,
    Apart,
    Attempt,
    Beside,
    Checkpoint,
    Delivery,
    Fate,
    Held,
    Inputs,
    Metadata,
    Object,
    Postgres,
    State,
    Waiting,
)


def asker(state: State, guards: Guards, alive: int) -> Iterator[Move]:
    """Yield what a person may ask for: the replay of a live delivery, the release of a held row, a withdrawal."""
    if state.locked() or len(state.drivers) + len(state.recovers) + len(state.asides) >= alive:
        return
    if behind_marker(state, state.postgres, guards):
        return
    if state.budget.replays:
        for delivery in sorted(state.postgres.deliveries, key=lambda row: row.attempt):
            if delivery.live and delivery.inputs and delivery.inputs <= state.landed:
                budget = replace(state.budget, replays=state.budget.replays - 1)
                yield from begin(replace(state, budget=budget), planned(state.postgres, delivery), guards)
    if state.budget.releases:
        for held in sorted(state.postgres.quarantine, key=lambda row: (row.row, row.attempt)):
            if held.waiting is Waiting.HELD:
                budget = replace(state.budget, releases=state.budget.releases - 1)
                me = Apart(
                    at=Beside.OPENED, stream=0, attempt=0, origin=held.attempt, rows=frozenset((held.row,))
                )
                yield from begin(replace(state, budget=budget), me, guards)
    if state.budget.withdrawals and not unknown(state, state.postgres):
        budget = replace(state.budget, withdrawals=state.budget.withdrawals - 1)
        postgres = take_lease(state, state.postgres, guards)
        leased = replace(state, budget=budget, postgres=postgres)
        for delivery in sorted(postgres.deliveries, key=lambda row: row.attempt):
            if delivery.live and delivery.stream == postgres.current:
                yield from begin(leased, going_back(postgres, delivery), guards)


def going_back(postgres: Postgres, first: Delivery) -> Apart:
    """Return what a withdrawal takes out: from this batch of the stream on all of it, and the releases of its rows."""
    chain = {
        row.attempt
        for row in postgres.deliveries
        if row.live and row.stream == first.stream and row.batch >= first.batch
    }
    chain = with_releases(postgres, chain)
    kept = [row.inputs for row in postgres.deliveries if row.live and row.attempt not in chain]
    return Apart(
        at=Beside.OPENED,
        stream=0,
        attempt=0,
        replaces=frozenset(chain),
        token=postgres.lease,
        kept=frozenset().union(*kept),
    )


def planned(postgres: Postgres, delivery: Delivery) -> Apart:
    """Return what a replay of this delivery replaces: itself, and the live releases of its rows (--releases drop)."""
    chain = with_releases(postgres, {delivery.attempt})
    return Apart(at=Beside.OPENED, stream=0, attempt=0, replaces=frozenset(chain), inputs=delivery.inputs)


def with_releases(postgres: Postgres, chain: set[int]) -> set[int]:
    """Return the deliveries with the live releases of their rows, and of rows that these had held."""
    while more := {
        row.attempt
        for row in postgres.deliveries
        if row.live and row.origin in chain and row.attempt not in chain
    }:
        chain = chain | more
    return chain


def begin(state: State, me: Apart, guards: Guards) -> Iterator[Move]:
    """Under the lock: runs beside the stream that look dead are given up, and this one's attempt is opened.

    One that is alive may look dead: its heartbeat was late.
    """
    what = f"replays {sorted(me.replaces)}" if me.replaces else f"releases {sorted(me.rows)}"
    what = f"goes back before {sorted(me.replaces)}" if me.token else what
    living = {other.attempt for other in state.asides}
    for given_up in (frozenset(), living):
        attempts = frozenset(
            replace(row, fate=Fate.FENCED)
            if row.apart and row.fate is Fate.OPEN and (row.attempt in given_up or row.attempt not in living)
            else row
            for row in state.postgres.attempts
        )
        attempt, stream = state.fresh_attempt(), state.fresh_stream()
        opened = Attempt(attempt=attempt, token=stream, fate=Fate.OPEN, apart=True)
        now = replace(me, attempt=attempt, stream=stream)
        postgres = replace(state.postgres, attempts=attempts | {opened})
        yield Move(
            actor=f"aside {attempt}",
            note=what + (f", gives up {sorted(given_up)}" if given_up else ""),
            after=replace(state, postgres=postgres, asides=ordered(*state.asides, now)),
        )
        if not living:
            return


def ordered(*asides: Apart) -> tuple[Apart, ...]:
    return tuple(sorted(asides, key=lambda me: (me.attempt, me.at)))


def aside(state: State, me: Apart, guards: Guards) -> Iterator[Move]:
    """Yield the next moves of one replay or release."""
    others = list(state.asides)
    others.remove(me)

    def go(now: Apart | None, note: str = "", **changes: Any) -> Move:
        asides = ordered(*others, now) if now else tuple(others)
        return Move(actor=f"aside {me.attempt}", note=note, after=replace(state, asides=asides, **changes))

    item = made(me, state.suite)
    match me.at:
        case Beside.OPENED if me.token:
            yield go(**seeded(state, me))
        case Beside.OPENED:
            yield go(replace(me, at=Beside.STAGED), "stages", data=put(state, item, guards))
        case Beside.STAGED:
            yield from draft(state, me, item, go)
        case Beside.DRAFTED:
            yield from lock(state, me, guards, go)
        case Beside.LOCKED:
            after = replace(
                commit(state.postgres, me, item, guards), newest=me.attempt if state.marked else 0
            )
            yield go(None, "commits", postgres=after, marker=told(replace(state, postgres=after), me.attempt))
    if state.budget.crashes:
        yield go(None, "CRASH", budget=replace(state.budget, crashes=state.budget.crashes - 1))


def seeded(state: State, me: Apart) -> dict[str, Any]:
    """Return what a withdrawal does before its commit: the new stream is known, and has its checkpoint."""
    stream = state.fresh_stream()
    folder = Checkpoint(stream=stream, sources=((1, me.kept),), offsets=((0, 1),), mark=0)
    return {
        "now": replace(me, at=Beside.STAGED, again=stream),
        "note": f"seeds stream {stream} with {sorted(me.kept)}",
        "postgres": replace(state.postgres, streams=state.postgres.streams | {(stream, 1)}),
        "folders": state.with_folder(stream, folder),
        "data": state.data | {made(me, state.suite)},
    }


def made(me: Apart, suite: Inputs) -> Object:
    """Return what it stages: a replay the rows that the suite passes, a release the row, corrected."""
    rows = me.rows or me.inputs - suite
    return Object(
        attempt=me.attempt, stream=me.stream, batch=0, inputs=me.inputs, held=me.inputs - rows, rows=rows
    )


def draft(state: State, me: Apart, item: Object, go: Go) -> Iterator[Move]:
    base = state.postgres.pointer
    leaving = {one for one in base.objects if one.attempt in me.replaces}
    if len(leaving) < len(me.replaces):
        yield go(None, "what it replaces is no longer in the table")
        return
    now = replace(me, at=Beside.DRAFTED, base=base)
    yield go(now, "drafts", metadata=state.metadata | {drafted(me, base, item)})


def drafted(me: Apart, base: Metadata, item: Object) -> Metadata:
    kept = frozenset(one for one in base.objects if one.attempt not in me.replaces)
    return Metadata(owner=me.attempt, objects=kept | {item})


def refusal(postgres: Postgres, me: Apart, guards: Guards) -> str | None:
    """Return why it must not commit, as seen under the lock."""
    live = {row.attempt for row in postgres.deliveries if row.live}
    held = {(one.row, one.attempt) for one in postgres.quarantine if one.waiting is Waiting.HELD}
    since = {
        row.attempt for row in postgres.deliveries if row.live and row.origin in me.replaces
    } - me.replaces
    others = frozenset(
        file
        for row in postgres.deliveries
        if row.live and row.attempt not in me.replaces
        for file in row.inputs
    )
    if me.token and Guard.WITHDRAWAL_LEASE in guards and postgres.lease != me.token:
        return "Fenced"
    if Guard.APART_OPEN in guards and postgres.fate(me.attempt) is not Fate.OPEN:
        return "given up"
    if Guard.APART_LIVE in guards and not me.replaces <= live:
        return "what it replaces is no longer live"
    if Guard.APART_SINCE in guards and since:
        return "rows were released since"
    if Guard.APART_HELD in guards and not {(row, me.origin) for row in me.rows} <= held:
        return "no longer held"
    if Guard.INPUTS_UNIQUE in guards and me.inputs & others:
        return "input taken"
    return None


def lock(state: State, me: Apart, guards: Guards, go: Go) -> Iterator[Move]:
    if state.locked():
        return
    refused = refusal(state.postgres, me, guards)
    if refused:
        yield go(None, refused)
    elif Guard.POINTER_CAS in guards and state.postgres.pointer != me.base:
        yield go(replace(me, at=Beside.STAGED, base=EMPTY), "the pointer moved")
    else:
        yield go(replace(me, at=Beside.LOCKED), "locks the pipeline's row")


def commit(postgres: Postgres, me: Apart, item: Object, guards: Guards) -> Postgres:
    """Commit in one transaction: what is replaced goes out of force, what is let out is released, the new comes in."""
    deliveries = frozenset(
        replace(row, live=False) if row.attempt in me.replaces else row for row in postgres.deliveries
    )
    new = Delivery(stream=me.stream, batch=0, inputs=me.inputs, attempt=me.attempt, origin=me.origin)
    quarantine = frozenset(held_after(one, me) for one in postgres.quarantine)
    quarantine |= {Held(row=row, attempt=me.attempt, waiting=Waiting.HELD) for row in item.held}
    attempts = frozenset(
        replace(row, fate=Fate.DELIVERED) if row.attempt == me.attempt else row for row in postgres.attempts
    )
    left = ((row, attempt) for row, attempt in postgres.warehouse if attempt not in me.replaces)
    return replace(
        postgres,
        deliveries=deliveries | {new},
        quarantine=quarantine,
        warehouse=tuple(sorted((*left, *((row, me.attempt) for row in item.rows)))),
        pointer=drafted(me, me.base, item),
        attempts=attempts,
        current=me.again or postgres.current,
    )


def held_after(one: Held, me: Apart) -> Held:
    """Return a quarantined row after the commit."""
    if one.attempt in me.replaces:
        return replace(one, waiting=Waiting.SUPERSEDED)
    if one.attempt == me.origin and one.row in me.rows:
        return replace(one, waiting=Waiting.RELEASED)
    return one
