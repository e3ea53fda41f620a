"""The `sluice` command."""

from __future__ import annotations

import gc
from typing import NoReturn

# Of so many new objects garbage is collected. At Python's default of 700 that takes a quarter of a command's imports.
NEW_OBJECTS = 50_000


def main() -> NoReturn:
    """Run the command `sluice`, whose modules are imported now and not with the package."""
    gc.set_threshold(NEW_OBJECTS)
    from etl.cli.app import main

    main()
