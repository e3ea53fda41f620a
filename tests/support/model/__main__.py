"""`python -m tests.support.model [SCENARIO…]`: the large searches too, with the needed guards alone and with all of them."""

from __future__ import annotations

import sys
import time

from .explore import Found, search
from .guards import ALL, NEEDED, SPARE
from .scenarios import CAUGHT_BY, LARGE, SCENARIOS


def main(chosen: list[str]) -> int:
    """Search the chosen scenarios, by default all of them; 1 when anything is violated or not caught."""
    scenarios, failures = SCENARIOS | LARGE, 0
    for name in chosen or scenarios:
        for label, guards in (("needed guards", NEEDED), ("all guards", ALL)):
            began = time.monotonic()
            found = search(scenarios[name], guards)
            show(name, label, found.violation or "holds", f"{time.monotonic() - began:.0f} s", found=found)
            failures += found.violation is not None
    for guard, caught in () if chosen else CAUGHT_BY.items():
        others, gone = caught.others(guard), ", ".join(sorted(one.name for one in caught.instead_of))
        found = search(scenarios[caught.scenario], others)
        label = f"without {guard.name}" + (f" and what it stands in for ({gone})" if gone else "")
        show(label, caught.scenario, found.violation or "NOTHING BREAKS", found=found)
        failures += found.violation is None
        if guard in SPARE:
            found = search(scenarios[caught.scenario], others | {guard})
            show(f"{guard.name} instead of {gone}", caught.scenario, found.violation or "holds", found=found)
            failures += found.violation is not None
    return 1 if failures else 0


def show(*told: str, found: Found) -> None:
    """Print one line of what was searched and found, and the trace below it."""
    print(*told, f"{found.states:,} states", sep=" | ", flush=True)
    print(*(f"    {move}" for move in found.trace), sep="\n", end="\n" if found.trace else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
