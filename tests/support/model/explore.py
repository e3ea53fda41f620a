"""Searches every state that a scenario can reach, breadth first, so that a violation's trace is the shortest."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from etl.common.steps import Step

from .apart import aside, asker
from .faults import faults
from .guards import Guards
from .protocol import Move, driver, launcher, server
from .recover import recover, recoverer
from .state import Budget, Checkpoint, Inputs, State, Waiting
from .sweeper import sweeper


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A world to search: how often each thing may happen, and how many runs and recovers may be alive at once."""

    budget: Budget
    alive: int = 2
    files: int = 2  # landed
    numbered: bool = False  # with delivery ids from a sequence
    marked: bool = False  # with the lake's marker
    stray: bool = False  # somebody has a copy of a folder that counts all files as read, in a batch that a restore took back
    held: int = 0  # of the files, the first so many have a row that breaks a rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search saw."""

    violation: str | None
    trace: tuple[str, ...]
    states: int
    steps: frozenset[Step]


def moves(state: State, guards: Guards, alive: int) -> Iterator[Move]:
    """Everything that could happen next."""
    for run in state.drivers:
        yield from driver(state, run, guards)
    yield from server(state)
    yield from launcher(state, guards, alive)
    for recovery in state.recovers:
        yield from recover(state, recovery, guards)
    yield from recoverer(state, guards, alive)
    for other in state.asides:
        yield from aside(state, other, guards)
    yield from asker(state, guards, alive)
    yield from sweeper(state, guards)
    yield from faults(state, guards)


def broken(state: State) -> str | None:
    """Return the invariant that does not hold in this state."""
    postgres = state.postgres
    rows = Counter(row for row, _ in postgres.warehouse)
    if any(count > 1 for count in rows.values()):
        return "a row is in the warehouse twice"
    on_lake = Counter(row for item in postgres.pointer.objects for row in item.rows)
    if any(count > 1 for count in on_lake.values()):
        return "a row is on the lake twice"
    if rows != on_lake:
        return "the sinks differ"
    waiting = Counter(one.row for one in postgres.quarantine if one.waiting is Waiting.HELD)
    if any(count + rows[row] > 1 for row, count in waiting.items()):
        return "a row is held, and delivered or held elsewhere as well"
    numbers = Counter(number for number, _ in state.ever)
    if any(count > 1 for count in numbers.values()):
        return "two deliveries have one delivery id"
    if postgres.pointer not in state.metadata or not postgres.pointer.objects <= state.data:
        return "an object that the pointer refers to is gone or overwritten"
    kept = state.backup
    if kept and (kept.pointer not in state.metadata or not kept.pointer.objects <= state.data):
        return "an object that a backup within the horizon refers to is gone or overwritten"
    return None


def reached_goal(state: State) -> bool:
    """Tell whether all that landed is delivered, but for what was lost for good and was named."""
    return state.to_deliver() <= state.postgres.live_inputs()


def remembered(before: State, after: State) -> State:
    """Return a state with what only time tells: which delivery is the newest, and which ids were ever a delivery's."""
    if after.marked and len(new := after.postgres.deliveries - before.postgres.deliveries) == 1:
        (newest,) = new
        if newest.attempt != after.postgres.newest and after.postgres.deliveries > before.postgres.deliveries:
            after = replace(after, postgres=replace(after.postgres, newest=newest.attempt))
    if after.numbered:
        known = {(row.number, row.attempt) for row in after.postgres.deliveries if row.number}
        if not known <= after.ever:
            after = replace(after, ever=after.ever | known)
    return after


def stray(files: Inputs) -> Checkpoint:
    """Return a folder whose stream delivered these files in one batch, on a timeline that a restore abandoned."""
    return Checkpoint(stream=1, sources=((1, files),), offsets=((0, 1),), mark=0)


def search(scenario: Scenario, guards: Guards, cap: int = 2_000_000) -> Found:
    """Search until something is violated or nothing is new; more than `cap` states is an error, never a pass."""
    first = State(
        budget=scenario.budget,
        landed=frozenset(range(scenario.files)),
        numbered=scenario.numbered,
        marked=scenario.marked,
        copy=stray(frozenset(range(scenario.files))) if scenario.stray else None,
        suite=frozenset(range(scenario.held)),
    )
    cause: dict[State, tuple[State, Move] | None] = {first: None}
    before: dict[State, list[State]] = {first: []}
    queue = deque([first])
    steps: set[Step] = set()

    def found(violation: str | None, state: State, *last: Move) -> Found:
        trace = [str(move) for move in last]
        while (link := cause[state]) is not None:
            trace.append(str(link[1]))
            state = link[0]
        return Found(
            violation=violation, trace=tuple(reversed(trace)), states=len(cause), steps=frozenset(steps)
        )

    while queue:
        state = queue.popleft()
        for move in moves(state, guards, scenario.alive):
            if move.step:
                steps.add(move.step)
            if move.lie:
                return found(move.lie, state, move)
            after = remembered(state, move.after)
            if (known := before.get(after)) is not None:
                known.append(state)
                continue
            before[after], cause[after] = [state], (state, move)
            if violation := broken(after):
                return found(violation, after)
            queue.append(after)
        if len(cause) > cap:
            raise RuntimeError(f"more than {cap} states: make the scenario's budget smaller")
    if scenario.budget.recovers and (stuck := without_way_on(before)) is not None:
        return found("no way on: the rows can't be delivered any more", stuck)
    return found(None, first)


def without_way_on(before: Mapping[State, list[State]]) -> State | None:
    """Return the first state that had runs and recovers to spare, and from which the goal can't be reached."""
    reaching = {state for state in before if reached_goal(state)}
    stack = list(reaching)
    while stack:
        for state in before[stack.pop()]:
            if state not in reaching:
                reaching.add(state)
                stack.append(state)
    for state in before:
        if state.budget.starts > 0 and state.budget.recovers > 0 and state not in reaching:
            return state
    return None
