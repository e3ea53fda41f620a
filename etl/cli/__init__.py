"""The `sluice` command."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Run the command `sluice`, whose modules are imported now and not with the package."""
    from etl.cli.app import main

    main()
