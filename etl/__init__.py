"""Sluice: exactly-once micro-batch ETL, with its public functions `read`, `changes`, `delivered`, `session`, `check` and
`try_out`."""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {  # what users call, and where it is
    "read": ("etl.operations.serving.read", "read"),
    "changes": ("etl.operations.serving.changes", "changes"),
    "delivered": ("etl.operations.serving.read", "delivered"),
    "check": ("etl.operations.projects.check", "check"),
    "session": ("etl.spark.session", "session"),
    "try_out": ("etl.operations.suites.try_out", "try_files"),
}


def __getattr__(name: str) -> Any:
    """Import what a public function needs when it is first used: importing etl stays cheap."""
    if name in _PUBLIC:
        module, function = _PUBLIC[name]
        return getattr(importlib.import_module(module), function)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
