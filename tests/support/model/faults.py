"""What goes wrong around the actors: checkpoints lost or replaced, PostgreSQL restored from a backup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .protocol import Move, ordered
from .state import At, Beside, Budget, Checkpoint, RecoverAt, State


def faults(state: State) -> Iterator[Move]:
    """Yield every fault that the budget still allows."""
    yield from backup_and_restore(state)
    if state.checkpoint is not None:
        yield from losses(state, state.checkpoint)
    yield from copies(state)


def spent(state: State, what: str) -> Budget:
    return replace(state.budget, **{what: getattr(state.budget, what) - 1})


def backup_and_restore(state: State) -> Iterator[Move]:
    """Yield a newer backup, which takes the older one's place, and each restore."""
    if state.budget.backups and state.postgres.current and state.backup != state.postgres:
        after = replace(state, backup=state.postgres, budget=spent(state, "backups"))
        yield Move(actor="operator", note="BACKUP of PostgreSQL", after=after)
    if state.budget.restores and state.backup and state.backup != state.postgres:
        drivers = ordered(
            *(
                replace(driver, restored=True, at=At.UNKNOWN if driver.at is At.LOCKED else driver.at)
                for driver in state.drivers
            )
        )
        recovers = tuple(
            me for me in state.recovers if me.at is not RecoverAt.LOCKED
        )  # those end with an error
        asides = tuple(me for me in state.asides if me.at is not Beside.LOCKED)
        after = replace(
            state,
            postgres=state.backup,
            drivers=drivers,
            recovers=recovers,
            asides=asides,
            ghost=None,
            budget=spent(state, "restores"),
        )
        yield Move(actor="operator", note="RESTORE of PostgreSQL", after=after)


def losses(state: State, folder: Checkpoint) -> Iterator[Move]:
    """Yield each loss of the checkpoint, or of a part of it."""
    if not state.budget.losses:
        return
    left = {
        "the checkpoint": None,
        "all offsets": replace(folder, offsets=()),
        "the last offsets": replace(folder, offsets=folder.offsets[:-1]),
        "all commits": replace(folder, mark=-1),
        "all sources": replace(folder, sources=()),
        "the last sources": replace(folder, sources=folder.sources[:-1]),
        "offsets and commits": replace(folder, offsets=(), mark=-1),
    }
    budget = spent(state, "losses")
    for what, rest in left.items():
        if rest != folder:
            yield Move(
                actor="operator", note=f"LOSES {what}", after=replace(state, checkpoint=rest, budget=budget)
            )


def copies(state: State) -> Iterator[Move]:
    """Somebody copies the checkpoint's folder, and later puts the copy back in its place."""
    if state.budget.copies and state.copy is None and state.checkpoint:
        after = replace(state, copy=state.checkpoint, budget=spent(state, "copies"))
        yield Move(actor="operator", note="COPIES the checkpoint", after=after)
    if state.copy is not None and state.copy != state.checkpoint:
        yield Move(
            actor="operator",
            note="PUTS THE COPY BACK",
            after=replace(state, checkpoint=state.copy, copy=None),
        )
