"""Asking processes that may end meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

import psutil

T = TypeVar("T")


def answers(processes: Iterable[psutil.Process], ask: Callable[[psutil.Process], T]) -> list[T]:
    """Ask each process and return what they answer; one that has ended, or ends while it is asked, is left out."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            try:
                found.append(ask(process))
            except psutil.AccessDenied:
                if process.status() != psutil.STATUS_ZOMBIE:  # which answers nobody but root
                    raise
    return found
