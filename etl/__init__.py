"""Sluice: exactly-once micro-batch ETL."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """`etl.read(…)` and `etl.session()` import what they need when first used: importing etl stays cheap."""
    if name == "read":
        return importlib.import_module("etl.read")
    if name == "session":
        return importlib.import_module("etl.sparksession").session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
