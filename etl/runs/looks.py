"""Looks at something again and again beside what the calling thread does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def looking(look: Callable[[], None], *, every: float, name: str) -> Iterator[None]:
    """Call `look` every so many seconds while the block runs, and once more when it has ended, however it did.

    A thread of its own does it: a signal that breaks into a call to Spark leaves the calling thread's connection out
    of step.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(every):
            look()
        look()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
