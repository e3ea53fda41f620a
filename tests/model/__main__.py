"""`python -m tests.model [SCENARIO…]`: the large searches too, with the needed guards alone and with all of them."""

from __future__ import annotations

import sys
import time

from .explore import search
from .guards import ALL, NEEDED
from .scenarios import CAUGHT_BY, LARGE, SCENARIOS


def main(chosen: list[str]) -> int:
    """Search the chosen scenarios, by default all of them; 1 when anything is violated or not caught."""
    scenarios, failures = SCENARIOS | LARGE, 0
    for name in chosen or scenarios:
        for label, guards in (("needed guards", NEEDED), ("all guards", ALL)):
            began = time.monotonic()
            found = search(scenarios[name], guards)
            verdict = found.violation or "holds"
            print(
                f"{name} | {label} | {verdict} | {found.states:,} states | {time.monotonic() - began:.0f} s",
                flush=True,
            )
            print(*(f"    {move}" for move in found.trace), sep="\n", end="\n" if found.trace else "")
            failures += found.violation is not None
    for guard, name in () if chosen else CAUGHT_BY.items():
        found = search(scenarios[name], NEEDED - {guard})
        print(f"without {guard.name} | {name} | {found.violation or 'NOTHING BREAKS'}", flush=True)
        print(*(f"    {move}" for move in found.trace), sep="\n", end="\n" if found.trace else "")
        failures += found.violation is None
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
