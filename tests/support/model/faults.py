"""What goes on around the actors: checkpoints lost or replaced, PostgreSQL restored, landings pruned, another pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .checks import numbered
from .guards import Guard, Guards
from .protocol import Move, ordered
from .state import At, Beside, Budget, Folders, RecoverAt, State


def faults(state: State, guards: Guards) -> Iterator[Move]:
    """Yield every fault that the budget still allows."""
    yield from backup_and_restore(state)
    yield from losses(state)
    yield from copies(state)
    yield from prunes(state)
    yield from others(state, guards)


def spent(state: State, what: str) -> Budget:
    return replace(state.budget, **{what: getattr(state.budget, what) - 1})


def backup_and_restore(state: State) -> Iterator[Move]:
    """Yield a newer backup, which takes the older one's place, and each restore."""
    if state.budget.backups and state.postgres.current and state.backup != state.postgres:
        folders: Folders = state.folders if state.budget.rewinds else frozenset()
        after = replace(state, backup=state.postgres, kept_folders=folders, budget=spent(state, "backups"))
        yield Move(actor="operator", note="BACKUP of PostgreSQL", after=after)
    if state.budget.restores and state.backup and state.backup != state.postgres:
        after = replace(restored(state), budget=spent(state, "restores"))
        yield Move(actor="operator", note="RESTORE of PostgreSQL", after=after)
    if state.budget.rewinds and state.backup and state.backup != state.postgres:
        after = replace(restored(state), folders=state.kept_folders, budget=spent(state, "rewinds"))
        yield Move(actor="operator", note="RESTORE of PostgreSQL and the checkpoints", after=after)


def restored(state: State) -> State:
    """Return the world once PostgreSQL is what it was at the backup; what was in a transaction ends with an error.

    It is another server now, by which each pipeline looks at the lake again.
    """
    assert state.backup is not None
    drivers = ordered(
        *(
            replace(driver, restored=True, at=At.UNKNOWN if driver.at is At.LOCKED else driver.at)
            for driver in state.drivers
        )
    )
    return replace(
        state,
        postgres=replace(state.backup, numbers_compared=not state.numbered, marker_compared=not state.marked),
        drivers=drivers,
        recovers=tuple(me for me in state.recovers if me.at is not RecoverAt.LOCKED),
        asides=tuple(me for me in state.asides if me.at is not Beside.LOCKED),
        ghost=None,
    )


def losses(state: State) -> Iterator[Move]:
    """Yield each loss of the current stream's checkpoint, or of a part of it."""
    current = state.postgres.current
    if not state.budget.losses or (folder := state.folder(current)) is None:
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
            after = replace(state, folders=state.with_folder(current, rest), budget=budget)
            yield Move(actor="operator", note=f"LOSES {what}", after=after)


def copies(state: State) -> Iterator[Move]:
    """Somebody copies the current stream's folder, and later puts the copy into its place, or the current one's."""
    current = state.postgres.current
    folder = state.folder(current)
    if state.budget.copies and state.copy is None and folder:
        after = replace(state, copy=folder, budget=spent(state, "copies"))
        yield Move(actor="operator", note="COPIES the checkpoint", after=after)
    if state.copy is None:
        return
    for place in {state.copy.stream, current} - {0}:
        if state.copy != state.folder(place):
            yield Move(
                actor="operator",
                note=f"PUTS THE COPY of stream {state.copy.stream} in the place of stream {place}'s folder",
                after=replace(state, folders=state.with_folder(place, state.copy), copy=None),
            )


def prunes(state: State) -> Iterator[Move]:
    """Somebody removes a landed file once it is delivered."""
    if state.budget.prunes:
        for file in sorted(state.landed & state.postgres.live_inputs()):
            one = frozenset((file,))
            after = replace(
                state, landed=state.landed - one, pruned=state.pruned | one, budget=spent(state, "prunes")
            )
            yield Move(actor="operator", note=f"PRUNES file {file}, which is delivered", after=after)


def others(state: State, guards: Guards) -> Iterator[Move]:
    """Another pipeline on the same PostgreSQL delivers: it takes the next delivery id."""
    if not state.budget.others:
        return
    postgres, number = numbered(state, guards)
    if Guard.NUMBER_UNIQUE not in guards or number not in postgres.numbers():
        postgres = replace(postgres, taken=postgres.taken | {number})
        ever = state.ever | {(number, 0)}
    else:
        ever = state.ever  # the ledger's key refuses it, and the id is used up
    after = replace(state, postgres=postgres, ever=ever, budget=spent(state, "others"))
    yield Move(actor="another pipeline", note=f"delivers with id {number}", after=after)
