"""The `sluice` command."""

from __future__ import annotations

import gc
from typing import NoReturn

NEW_OBJECTS = (
    50_000  # Python's default of 700 looks through what is imported again and again: a quarter of its time
)


def main() -> NoReturn:
    """Run the command `sluice`, whose modules are imported now and not with the package."""
    gc.set_threshold(NEW_OBJECTS)
    from etl.cli.app import main

    main()
