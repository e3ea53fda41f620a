"""The worlds that are searched, and which of them catches the removal of which guard."""

from __future__ import annotations

from dataclasses import dataclass

from .explore import Scenario
from .guards import NEEDED, Guard, Guards
from .state import Budget

SCENARIOS: dict[str, Scenario] = {
    "crash": Scenario(budget=Budget(starts=2, crashes=1, lost_acks=1, recovers=1)),
    "zombie": Scenario(budget=Budget(starts=3, lost_acks=1)),
    "zombie, recover": Scenario(budget=Budget(starts=3, recovers=1)),
    "zombie, recover, one file": Scenario(budget=Budget(starts=3, recovers=1), files=1),
    "zombie, old copy": Scenario(budget=Budget(starts=2, copies=1)),
    "loss": Scenario(budget=Budget(starts=3, crashes=1, losses=1, recovers=1), alive=1),
    "copy": Scenario(budget=Budget(starts=3, copies=1, recovers=1), alive=1),
    "restore": Scenario(budget=Budget(starts=3, backups=1, restores=1, recovers=1), alive=1),
    "stray copy": Scenario(budget=Budget(starts=2, crashes=1, recovers=1), alive=1, stray=True),
    "stray copy, three files": Scenario(budget=Budget(starts=2, crashes=1), alive=1, stray=True, files=3),
    "zombie, restore": Scenario(budget=Budget(starts=2, backups=1, restores=1)),
    "zombies, restore": Scenario(budget=Budget(starts=3, backups=1, restores=1), files=1),
    "recover, restore, one file": Scenario(
        budget=Budget(starts=1, recovers=2, backups=1, restores=1), files=1
    ),
    "delivery ids": Scenario(
        budget=Budget(starts=2, crashes=1, recovers=1, backups=1, restores=1), alive=1, numbered=True
    ),
    "delivery ids, another pipeline": Scenario(
        budget=Budget(starts=2, recovers=1, backups=1, restores=1, prunes=1, others=1),
        alive=1,
        numbered=True,
        files=1,
    ),
    "prune, restore": Scenario(
        budget=Budget(starts=2, crashes=1, recovers=1, backups=1, restores=1, prunes=1), alive=1, files=1
    ),
    "prune, restore, loss": Scenario(
        budget=Budget(starts=2, recovers=1, backups=1, restores=1, prunes=1, losses=1),
        alive=1,
        files=1,
        marked=True,
    ),
    "prune, sweep, restore": Scenario(
        budget=Budget(starts=2, recovers=1, backups=1, restores=1, prunes=1, sweeps=1), alive=1, files=1
    ),
    "prune, replay, rewind": Scenario(
        budget=Budget(starts=2, recovers=1, backups=1, rewinds=1, prunes=1, replays=1),
        alive=1,
        files=1,
        marked=True,
    ),
    "prune, zombie, restore": Scenario(
        budget=Budget(starts=2, recovers=1, backups=1, restores=1, prunes=1), files=1
    ),
    "prune, recover, restore": Scenario(
        budget=Budget(starts=3, crashes=1, recovers=2, backups=1, restores=1, prunes=1), alive=1, files=1
    ),
    "prune, rewind": Scenario(
        budget=Budget(starts=3, recovers=1, backups=1, rewinds=1, prunes=1), alive=1, marked=True
    ),
    "sweep": Scenario(budget=Budget(starts=2, sweeps=1)),
    "sweep, one file": Scenario(budget=Budget(starts=2, sweeps=1), files=1),
    "sweep, backup": Scenario(budget=Budget(starts=1, sweeps=1, backups=1), alive=1),
    "sweep, recover": Scenario(budget=Budget(starts=1, recovers=1, sweeps=1, crashes=1)),
    "sweep, recover, one file": Scenario(budget=Budget(starts=1, recovers=1, sweeps=1, crashes=1), files=1),
    "sweep, restore": Scenario(budget=Budget(starts=2, sweeps=1, backups=1, restores=1), files=1),
    "sweep, recover, restore": Scenario(
        budget=Budget(starts=1, recovers=1, sweeps=1, backups=1, restores=1, crashes=1), files=1
    ),
    "sweep, recover, restore, backups": Scenario(
        budget=Budget(starts=2, recovers=1, sweeps=1, backups=2, restores=1), files=1, alive=1
    ),
    "replays": Scenario(budget=Budget(starts=1, replays=2, crashes=1)),
    "replays, one file": Scenario(budget=Budget(starts=1, replays=2, crashes=1), files=1),
    "replay, stream": Scenario(budget=Budget(starts=2, replays=1, crashes=1)),
    "replay, sweep": Scenario(budget=Budget(starts=1, replays=2, sweeps=1), files=1, alive=3),
    "replay, restore": Scenario(budget=Budget(starts=2, replays=1, backups=1, restores=1), files=1),
    "replay, recover": Scenario(budget=Budget(starts=1, replays=1, recovers=1), files=1),
    "replay, backup, sweep": Scenario(budget=Budget(starts=1, replays=1, backups=1, sweeps=1), files=1),
    "releases": Scenario(budget=Budget(starts=1, releases=2, crashes=1), held=1),
    "replay, release": Scenario(budget=Budget(starts=1, replays=1, releases=2), held=1, files=1),
    "replays, release": Scenario(budget=Budget(starts=1, replays=2, releases=1), held=1, files=1),
    "withdrawal": Scenario(budget=Budget(starts=2, withdrawals=1, crashes=1)),
    "withdrawal, release": Scenario(
        budget=Budget(starts=2, withdrawals=1, releases=1, crashes=1), held=1, files=1
    ),
    "withdrawal, replay": Scenario(budget=Budget(starts=2, withdrawals=1, replays=1), files=1),
    "withdrawal, recover, restore": Scenario(
        budget=Budget(starts=2, withdrawals=1, recovers=1, backups=1, restores=1), files=1, alive=1
    ),
    "withdrawal, sweep": Scenario(budget=Budget(starts=2, withdrawals=1, sweeps=1), files=1),
    "release, restore, sweep": Scenario(
        budget=Budget(starts=1, releases=1, backups=1, restores=1, sweeps=1), held=1, files=1
    ),
}
"""Small enough for every run of the tests."""

LARGE: dict[str, Scenario] = {
    "prune, rewind, another pipeline": Scenario(
        budget=Budget(starts=2, recovers=1, backups=1, rewinds=1, prunes=1, others=1),
        alive=1,
        numbered=True,
        marked=True,
    ),
    "recover, restore": Scenario(budget=Budget(starts=1, recovers=2, backups=1, restores=1)),
    "two runs, loss": Scenario(budget=Budget(starts=2, losses=1, recovers=1)),
    "zombie, restore, loss": Scenario(budget=Budget(starts=3, backups=1, restores=1, losses=1)),
    "sweep, recover, backups": Scenario(budget=Budget(starts=2, recovers=1, sweeps=1, backups=2), files=1),
    "zombie, crash, recover": Scenario(budget=Budget(starts=3, crashes=1, recovers=1)),
    "zombie, copy": Scenario(budget=Budget(starts=3, copies=1, recovers=1)),
    "zombie, loss": Scenario(budget=Budget(starts=3, losses=1, recovers=1)),
    "zombie, restore, recover": Scenario(budget=Budget(starts=2, recovers=1, backups=1, restores=1)),
    "copy, restore": Scenario(budget=Budget(starts=3, copies=1, backups=1, restores=1, recovers=1), alive=1),
}
"""For `python -m tests.support.model`."""


@dataclass(frozen=True, slots=True)
class Caught:
    """Where the protocol holds with a guard and breaks without it.

    Of the needed guards, one alone is taken away. A second line is put in the place of those that it stands in for.
    """

    scenario: str
    instead_of: Guards = frozenset()
    beside: Guards = frozenset()  # the second lines that it takes together, itself among them

    def others(self, guard: Guard) -> Guards:
        """Return the guards in force there, without this one."""
        return (NEEDED | self.beside) - self.instead_of - {guard}


ONCE: Guards = frozenset((Guard.CONTINUITY, Guard.INPUTS_UNIQUE))
NEW_STREAM: Guards = frozenset((Guard.CURRENT_STREAM, Guard.INPUTS_UNIQUE))
NO_ROW_SKIPPED: Guards = frozenset((Guard.CONTINUITY, Guard.SEED_LOCKED))
OLD_STREAM_SHUT: Guards = frozenset((Guard.RECOVER_LEASE, Guard.RECOVER_RECHECK))

CAUGHT_BY: dict[Guard, Caught] = {
    Guard.ONE_TRANSACTION: Caught("crash"),
    Guard.TOKEN: Caught("sweep"),
    Guard.CURRENT_STREAM: Caught("prune, zombie, restore"),
    Guard.INPUTS_UNIQUE: Caught("copy"),
    Guard.NUMBER_UNIQUE: Caught("delivery ids, another pipeline"),
    Guard.POINTER_CAS: Caught("zombie, restore"),
    Guard.UNIQUE_NAMES: Caught("zombie, restore"),
    Guard.INPUTS_SAME: Caught("zombie, old copy"),
    Guard.UNKNOWN_READS: Caught("crash"),
    Guard.CHECK_STREAM: Caught("prune, recover, restore"),
    Guard.CHECK_BEHIND: Caught("restore"),
    Guard.CHECK_AHEAD: Caught("stray copy, three files"),
    Guard.CHECK_INPUTS: Caught("stray copy"),
    Guard.CHECK_DAMAGE: Caught("loss"),
    Guard.FORWARD_SPARES: Caught("sweep, recover, restore, backups"),
    Guard.NUMBER_SKIPS: Caught("delivery ids, another pipeline"),
    Guard.RECOVER_NAMES: Caught("prune, recover, restore"),
    Guard.MARKER: Caught("prune, rewind"),
    Guard.SWEEP_KNOWN: Caught("sweep, restore"),
    Guard.SWEEP_FENCED: Caught("sweep"),
    Guard.SWEEP_FENCED_BEFORE: Caught("sweep, restore"),
    Guard.SWEEP_RETAINED: Caught("sweep, backup"),
    Guard.SWEEP_LOCKS: Caught("sweep, recover, restore, backups"),
    Guard.SWEEP_READS_LAST: Caught("sweep"),
    Guard.METADATA_NAMED: Caught("sweep, restore"),
    Guard.APART_OPEN: Caught("replay, sweep"),
    Guard.APART_SINCE: Caught("replay, release"),
    Guard.APART_HELD: Caught("releases"),
    Guard.WITHDRAWAL_LEASE: Caught("withdrawal"),
    Guard.ATTEMPT_OPEN: Caught("sweep, one file", instead_of=frozenset((Guard.TOKEN,))),
    Guard.APART_LIVE: Caught(
        "replays, one file", instead_of=frozenset((Guard.INPUTS_UNIQUE, Guard.POINTER_CAS))
    ),
    Guard.CONTINUITY: Caught("restore", instead_of=frozenset((Guard.CHECK_INPUTS,)), beside=NO_ROW_SKIPPED),
    Guard.SEED_LOCKED: Caught("restore", instead_of=frozenset((Guard.CHECK_INPUTS,)), beside=NO_ROW_SKIPPED),
    Guard.CHECK_CURRENT: Caught("stray copy", instead_of=frozenset((Guard.CHECK_INPUTS,))),
    Guard.BATCH_UNIQUE: Caught("zombie", instead_of=ONCE),
    Guard.UNKNOWN_WAITS: Caught("zombie", instead_of=ONCE),
    Guard.RANDOM_TOKEN: Caught("zombies, restore", instead_of=ONCE),
    Guard.SKIP_NEEDS_LEASE: Caught("zombie, old copy", instead_of=frozenset((Guard.INPUTS_SAME,))),
    Guard.RECOVER_LEASE: Caught("zombie, recover, one file", instead_of=NEW_STREAM, beside=OLD_STREAM_SHUT),
    Guard.RECOVER_RECHECK: Caught("zombie, recover, one file", instead_of=NEW_STREAM, beside=OLD_STREAM_SHUT),
    Guard.FORWARD_ATTEMPT: Caught("sweep, recover, one file", instead_of=frozenset((Guard.SWEEP_KNOWN,))),
    Guard.SWEEP_LISTS_FIRST: Caught("sweep, backup", instead_of=frozenset((Guard.METADATA_NAMED,))),
    Guard.SWEEP_REFUSES: Caught(
        "sweep, recover, restore, backups", instead_of=frozenset((Guard.FORWARD_SPARES,))
    ),
}
