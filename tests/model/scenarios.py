"""The worlds that are searched."""

from __future__ import annotations

from .explore import Scenario
from .state import Budget

SCENARIOS: dict[str, Scenario] = {
    "crash": Scenario(budget=Budget(starts=2, crashes=1, lost_acks=1, recovers=1)),
    "zombie": Scenario(budget=Budget(starts=3, lost_acks=1)),
    "zombie, recover": Scenario(budget=Budget(starts=3, recovers=1)),
    "loss": Scenario(budget=Budget(starts=3, crashes=1, losses=1, recovers=1), alive=1),
    "copy": Scenario(budget=Budget(starts=3, copies=1, recovers=1), alive=1),
    "restore": Scenario(budget=Budget(starts=3, backups=1, restores=1, recovers=1), alive=1),
    "zombie, restore": Scenario(budget=Budget(starts=2, backups=1, restores=1)),
    "zombie, restore, loss": Scenario(budget=Budget(starts=3, backups=1, restores=1, losses=1)),
    "recover, restore": Scenario(budget=Budget(starts=1, recovers=2, backups=1, restores=1)),
    "sweep": Scenario(budget=Budget(starts=2, sweeps=1)),
    "sweep, recover": Scenario(budget=Budget(starts=1, recovers=1, sweeps=1, crashes=1)),
    "sweep, restore": Scenario(budget=Budget(starts=2, sweeps=1, backups=1, restores=1), files=1),
    "sweep, recover, restore": Scenario(
        budget=Budget(starts=1, recovers=1, sweeps=1, backups=1, restores=1, crashes=1), files=1
    ),
}
