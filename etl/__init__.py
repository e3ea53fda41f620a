"""Sluice: exactly-once micro-batch ETL."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """`etl.read(…)` imports what it needs when it is first used: importing etl stays cheap."""
    if name != "read":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("etl.read")
