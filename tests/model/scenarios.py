"""The worlds that are searched, and which of them catches the removal of which guard."""

from __future__ import annotations

from .explore import Scenario
from .guards import Guard
from .state import Budget

SCENARIOS: dict[str, Scenario] = {
    "crash": Scenario(budget=Budget(starts=2, crashes=1, lost_acks=1, recovers=1)),
    "zombie": Scenario(budget=Budget(starts=3, lost_acks=1)),
    "zombie, recover": Scenario(budget=Budget(starts=3, recovers=1)),
    "loss": Scenario(budget=Budget(starts=3, crashes=1, losses=1, recovers=1), alive=1),
    "copy": Scenario(budget=Budget(starts=3, copies=1, recovers=1), alive=1),
    "restore": Scenario(budget=Budget(starts=3, backups=1, restores=1, recovers=1), alive=1),
    "zombie, restore": Scenario(budget=Budget(starts=2, backups=1, restores=1)),
    "recover, restore": Scenario(budget=Budget(starts=1, recovers=2, backups=1, restores=1)),
    "delivery ids": Scenario(
        budget=Budget(starts=2, crashes=1, recovers=1, backups=1, restores=1), alive=1, numbered=True
    ),
    "sweep": Scenario(budget=Budget(starts=2, sweeps=1)),
    "sweep, backup": Scenario(budget=Budget(starts=1, sweeps=1, backups=1), alive=1),
    "sweep, recover": Scenario(budget=Budget(starts=1, recovers=1, sweeps=1, crashes=1)),
    "sweep, restore": Scenario(budget=Budget(starts=2, sweeps=1, backups=1, restores=1), files=1),
    "sweep, recover, restore": Scenario(
        budget=Budget(starts=1, recovers=1, sweeps=1, backups=1, restores=1, crashes=1), files=1
    ),
    "replays": Scenario(budget=Budget(starts=1, replays=2, crashes=1)),
    "replay, stream": Scenario(budget=Budget(starts=2, replays=1, crashes=1)),
    "replay, sweep": Scenario(budget=Budget(starts=1, replays=2, sweeps=1), files=1, alive=3),
    "replay, restore": Scenario(budget=Budget(starts=2, replays=1, backups=1, restores=1), files=1),
    "replay, recover": Scenario(budget=Budget(starts=1, replays=1, recovers=1), files=1),
    "replay, backup, sweep": Scenario(budget=Budget(starts=1, replays=1, backups=1, sweeps=1), files=1),
    "releases": Scenario(budget=Budget(starts=1, releases=2, crashes=1), held=1),
    "replay, release": Scenario(budget=Budget(starts=1, replays=1, releases=2), held=1, files=1),
    "replays, release": Scenario(budget=Budget(starts=1, replays=2, releases=1), held=1, files=1),
    "release, restore, sweep": Scenario(
        budget=Budget(starts=1, releases=1, backups=1, restores=1, sweeps=1), held=1, files=1
    ),
}
"""Small enough for every run of the tests."""

LARGE: dict[str, Scenario] = {
    "zombie, restore, loss": Scenario(budget=Budget(starts=3, backups=1, restores=1, losses=1)),
    "sweep, recover, backups": Scenario(budget=Budget(starts=2, recovers=1, sweeps=1, backups=2), files=1),
    "zombie, crash, recover": Scenario(budget=Budget(starts=3, crashes=1, recovers=1)),
    "zombie, copy": Scenario(budget=Budget(starts=3, copies=1, recovers=1)),
    "zombie, loss": Scenario(budget=Budget(starts=3, losses=1, recovers=1)),
    "zombie, restore, recover": Scenario(budget=Budget(starts=2, recovers=1, backups=1, restores=1)),
    "copy, restore": Scenario(budget=Budget(starts=3, copies=1, backups=1, restores=1, recovers=1), alive=1),
}
"""For `python -m tests.model`."""

CAUGHT_BY: dict[Guard, str] = {
    Guard.ONE_TRANSACTION: "crash",
    Guard.TOKEN: "sweep",
    Guard.CURRENT_STREAM: "zombie, loss",
    Guard.CONTINUITY: "restore",
    Guard.INPUTS_UNIQUE: "zombie, recover",
    Guard.NUMBER_UNIQUE: "delivery ids",
    Guard.POINTER_CAS: "zombie, restore",
    Guard.UNIQUE_NAMES: "zombie, restore",
    Guard.INPUTS_SAME: "zombie, restore, loss",
    Guard.UNKNOWN_READS: "crash",
    Guard.CHECK_STREAM: "restore",
    Guard.CHECK_BEHIND: "restore",
    Guard.CHECK_AHEAD: "zombie, loss",
    Guard.CHECK_INPUTS: "zombie, restore, loss",
    Guard.CHECK_DAMAGE: "loss",
    Guard.SEED_LOCKED: "restore",
    Guard.FORWARD_SPARES: "sweep, recover, backups",
    Guard.SWEEP_KNOWN: "sweep, restore",
    Guard.SWEEP_FENCED: "sweep",
    Guard.SWEEP_FENCED_BEFORE: "sweep, restore",
    Guard.SWEEP_RETAINED: "sweep, backup",
    Guard.SWEEP_LOCKS: "sweep, recover, backups",
    Guard.SWEEP_READS_LAST: "sweep",
    Guard.METADATA_NAMED: "sweep, restore",
    Guard.APART_OPEN: "replay, sweep",
    Guard.APART_SINCE: "replay, release",
    Guard.APART_HELD: "releases",
}
"""A scenario in which the protocol breaks when only this guard is taken away."""
