"""What is looked at before a run, a replay, a release or a sweep begins, and before a run that stays up goes on."""

from __future__ import annotations

from dataclasses import replace

from .guards import Guard, Guards
from .state import Checkpoint, Postgres, State


def stop(state: State, postgres: Postgres, guards: Guards) -> str | None:
    """Return what the checks at a run's start find; None when the run may go on."""
    if lost := behind_marker(state, postgres, guards):
        return lost
    if Guard.CHECK_STREAM in guards and unknown(state, postgres):
        return "LedgerBehind: it does not know a stream"
    return misfit(state, postgres, guards)


def behind_marker(state: State, postgres: Postgres, guards: Guards) -> str | None:
    """Return LedgerBehind where the ledger lacks the delivery that the lake's marker names."""
    if Guard.MARKER in guards and state.marker and not postgres.has(state.marker):
        return "LedgerBehind: says the marker"
    return None


def unknown(state: State, postgres: Postgres) -> frozenset[int]:
    """Return the streams that have a folder and that the ledger does not know."""
    return frozenset(place for place, _ in state.folders) - {stream for stream, _ in postgres.streams}


def misfit(state: State, postgres: Postgres, guards: Guards) -> str | None:
    """Return what keeps the current stream from going on with what is in its folder; None where both fit."""
    current = postgres.current
    checkpoint = state.folder(current)
    if not current or is_unbegun(postgres, checkpoint):
        return None
    if checkpoint is None:
        return "CheckpointLost"
    if Guard.CHECK_DAMAGE in guards and checkpoint.damaged():
        return "CheckpointDamaged"
    if Guard.CHECK_CURRENT in guards and checkpoint.stream != current:
        return "CheckpointLost: it is another stream's"
    last = postgres.last_batch(current)
    if Guard.CHECK_BEHIND in guards and checkpoint.mark > last:
        return "LedgerBehind"
    if Guard.CHECK_AHEAD in guards and last > checkpoint.last_batch():
        return "LedgerAhead"
    if Guard.CHECK_INPUTS in guards and not checkpoint.read_until(last) <= postgres.live_inputs():
        return "CheckpointDamaged: it counts as read what was not delivered"
    return None


def is_unbegun(postgres: Postgres, checkpoint: Checkpoint | None) -> bool:
    """Tell whether the current stream, a pipeline's first, has neither a folder nor a delivery yet."""
    first, last = postgres.first_batch(postgres.current), postgres.last_batch(postgres.current)
    return checkpoint is None and first == 0 and last < first


def numbered(state: State, guards: Guards) -> tuple[Postgres, int]:
    """Return the ledger after the next delivery id was given out, and that id; 0 where ids are no part of the world."""
    postgres = state.postgres
    if not state.numbered and Guard.UNIQUE_NAMES in guards:
        return postgres, 0
    sequence = postgres.sequence
    if Guard.NUMBER_SKIPS in guards and not postgres.numbers_compared:
        sequence = max(sequence, state.highest_number())
    return replace(postgres, sequence=sequence + 1, numbers_compared=True), sequence + 1
