"""`sluice sweep`: deletes what no pointer refers to and no run can still commit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .checks import behind_marker, misfit
from .guards import Guard, Guards
from .protocol import Go, Move
from .state import Fate, State, Sweep, Sweeper


def settled(state: State) -> frozenset[int]:
    """Attempts that are known, not open, and were so already in the oldest backup that could be restored."""
    now = {row.attempt for row in state.postgres.attempts if row.fate is not Fate.OPEN}
    if state.backup is None:
        return frozenset(now)
    return frozenset(now & {row.attempt for row in state.backup.attempts if row.fate is not Fate.OPEN})


def order(guards: Guards) -> tuple[Sweep, ...]:
    turns = [Sweep.DECIDE, Sweep.DELETE]
    turns.insert(1 if Guard.SWEEP_READS_LAST in guards else 0, Sweep.READ)
    turns.insert(0 if Guard.SWEEP_LISTS_FIRST in guards else turns.index(Sweep.DECIDE) + 1, Sweep.LIST)
    return tuple(turns)


def sweeper(state: State, guards: Guards) -> Iterator[Move]:
    """Yield the sweeper's next moves."""
    me = state.sweeper
    if me is None:
        if not state.budget.sweeps or not state.data:
            return
        me = Sweeper(done=())
        state = replace(state, budget=replace(state.budget, sweeps=state.budget.sweeps - 1))
    turn = order(guards)[len(me.done)]
    me = replace(me, done=(*me.done, turn))

    def go(now: Sweeper | None, note: str, **changes: Any) -> Move:
        return Move(actor="sweeper", note=note, after=replace(state, sweeper=now, **changes))

    match turn:
        case Sweep.LIST:
            yield go(replace(me, data=state.data, metadata=state.metadata), "lists")
        case Sweep.DECIDE:
            yield from decide(state, me, guards, go)
        case Sweep.READ:
            pointers = [state.postgres.pointer]
            if Guard.SWEEP_RETAINED in guards and state.backup:
                pointers.append(state.backup.pointer)
            referenced = frozenset(pointers).union(*(pointer.objects for pointer in pointers))
            yield go(replace(me, referenced=referenced), "reads the pointers")
        case Sweep.DELETE:
            yield delete(state, me, guards, go)


def decide(state: State, me: Sweeper, guards: Guards, go: Go) -> Iterator[Move]:
    """Yield the decision which attempts can't commit any more, whatever backup is restored."""
    if Guard.SWEEP_LOCKS in guards and state.locked():
        return
    if Guard.SWEEP_REFUSES in guards and (
        behind_marker(state, state.postgres, guards) or misfit(state, state.postgres, guards)
    ):
        yield go(None, "refuses: checkpoint and ledger do not fit together")
        return
    rows = state.postgres.attempts
    chosen = settled(state if Guard.SWEEP_FENCED_BEFORE in guards else replace(state, backup=None))
    if Guard.SWEEP_FENCED not in guards:
        chosen |= {row.attempt for row in rows}
    if Guard.SWEEP_KNOWN not in guards:
        owners = {item.attempt for item in state.data} | {item.owner for item in state.metadata}
        chosen |= owners - {row.attempt for row in rows}
    quiet = not any(row.fate is Fate.OPEN for row in rows)
    yield go(replace(me, settled=chosen, quiet=quiet), f"decides: {sorted(chosen)}")


def delete(state: State, me: Sweeper, guards: Guards, go: Go) -> Move:
    """Delete what was listed, belongs to those attempts and is referred to by nothing."""
    data = frozenset(item for item in me.data - me.referenced if item.attempt in me.settled)
    if Guard.METADATA_NAMED in guards:
        metadata = frozenset(item for item in me.metadata - me.referenced if item.owner in me.settled)
    else:
        metadata = me.metadata - me.referenced if me.quiet else frozenset()
    return go(
        None,
        f"deletes data of {sorted(item.attempt for item in data)}, metadata of {sorted(item.owner for item in metadata)}",
        data=state.data - data,
        metadata=state.metadata - metadata,
    )
