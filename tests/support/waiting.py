"""Waiting for what another process or thread brings about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(met: Callable[[], T], what: str | Callable[[], str], *, patience: float, every: float = 0.1) -> T:
    """Wait until `met` returns something true, and return it; after `patience` seconds fail with `what`."""
    deadline = time.monotonic() + patience
    while not (found := met()):
        assert time.monotonic() < deadline, f"waited {patience:g} s for {_said(what)}"
        time.sleep(every)
    return found


def _said(what: str | Callable[[], str]) -> str:
    return what if isinstance(what, str) else what()
