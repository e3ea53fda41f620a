"""Waiting for what another process or thread brings about."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(met: Callable[[], T], what: str | Callable[[], str], *, patience: float, every: float = 0.1) -> T:
    """What `met` gives once that holds; after `patience` seconds it fails, and says `what`."""
    deadline = time.monotonic() + patience
    while not (found := met()):
        assert time.monotonic() < deadline, f"waited {patience:g} s for {_said(what)}"
        time.sleep(every)
    return found


def readable(descriptor: int, patience: float) -> bool:
    """Whether there is something to read within so many seconds, however high the descriptor's number is."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(patience))


def _said(what: str | Callable[[], str]) -> str:
    return what if isinstance(what, str) else what()
