"""The repository that is tested, and what of the caller's environment the tests must not see."""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
JARS = REPOSITORY / ".sluice" / "jars"  # kept, so that they are resolved once and not in every run
FOREIGN = ("SLUICE_", "AWS_", "PG")


def give_main_a_file() -> None:
    """Give `__main__` a file where it has none, as under xdist: pyspark would take it for a doctest, and leave."""
    main = sys.modules["__main__"]
    if not hasattr(main, "__file__"):
        main.__file__ = __file__
