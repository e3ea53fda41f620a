"""`python -m etl.cli` is the command `sluice`."""

from __future__ import annotations

from etl.cli import main

main()
