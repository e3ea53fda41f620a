"""Sluice: exactly-once micro-batch ETL."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Import what `read`, `session` and `try_out` need when they are first used: importing etl stays cheap."""
    if name == "read":
        return importlib.import_module("etl.read")
    if name == "session":
        return importlib.import_module("etl.sparksession").session
    if name == "try_out":
        return importlib.import_module("etl.trying").try_files
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
