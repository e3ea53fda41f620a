"""The worlds that are searched."""

from __future__ import annotations

from .explore import Scenario
from .state import Budget

SCENARIOS: dict[str, Scenario] = {
    "crash": Scenario(budget=Budget(starts=3, crashes=1, lost_acks=1, recovers=1)),
    "zombie": Scenario(budget=Budget(starts=3, lost_acks=1)),
    "loss": Scenario(budget=Budget(starts=3, losses=1, recovers=1), alive=1),
    "restore": Scenario(budget=Budget(starts=3, backups=1, restores=1, recovers=1), alive=1),
    "restore, zombie": Scenario(budget=Budget(starts=3, backups=1, restores=1)),
    "sweep": Scenario(budget=Budget(starts=2, sweeps=1, crashes=1)),
    "sweep, restore": Scenario(budget=Budget(starts=2, sweeps=1, backups=1, restores=1)),
}
