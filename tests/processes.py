"""Asking processes that may end meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import psutil

from etl.services.process import lives

T = TypeVar("T")


def answers(processes: Iterable[psutil.Process], ask: Callable[[psutil.Process], T]) -> list[T]:
    """Ask each process and return what they answer; one that has ended, or ends while it is asked, is left out."""
    found = []
    for process in processes:
        try:
            found.append(ask(process))
        except (psutil.Error, ProcessLookupError):
            if lives(process):
                raise
    return found
