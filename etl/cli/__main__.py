"""Lets `python -m etl.cli` run the command `sluice`."""

from __future__ import annotations

from etl.cli import main

main()
