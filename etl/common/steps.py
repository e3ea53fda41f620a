"""The named steps of the delivery protocol, in their order.

The protocol's model and the crash tests speak of the same names. In a log `reached` does nothing; a terminal
shows where a batch is, and a crash test installs a listener that stops the process there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Step(StrEnum):
    LEASE_TAKEN = "lease-taken"
    ATTEMPT_OPENED = "attempt-opened"
    # on the executors, within one task
    OBJECT_OPENED = "object-opened"
    ROWS_ENCODED = "rows-encoded"
    ROWS_STAGED = "rows-staged"
    TASK_COMMITTED = "task-committed"
    # on the driver, beside them
    ROWS_COPIED = "rows-copied"
    # on the driver again
    STAGED = "staged"
    JUDGED = "judged"
    MANIFEST_WRITTEN = "manifest-written"
    POINTER_DRAFTED = "pointer-drafted"
    PIPELINE_LOCKED = "pipeline-locked"
    DELIVERY_INSERTED = "delivery-inserted"
    INPUTS_INSERTED = "inputs-inserted"
    ROWS_MERGED = "rows-merged"
    QUARANTINE_MERGED = "quarantine-merged"
    QUALITY_INSERTED = "quality-inserted"
    POINTER_SWAPPED = "pointer-swapped"
    COMMITTED = "committed"
    BATCH_DONE = "batch-done"


Listener = Callable[[Step], None]

PHASES = {  # of a delivery: from which step to which
    "stage": (Step.ATTEMPT_OPENED, Step.STAGED),
    "judge": (Step.STAGED, Step.JUDGED),
    "draft": (Step.JUDGED, Step.POINTER_DRAFTED),
    "transaction": (Step.POINTER_DRAFTED, Step.COMMITTED),
}

COMMIT = (
    Step.PIPELINE_LOCKED,
    Step.DELIVERY_INSERTED,
    Step.INPUTS_INSERTED,
    Step.ROWS_MERGED,
    Step.QUARANTINE_MERGED,
    Step.QUALITY_INSERTED,
    Step.POINTER_SWAPPED,
)

_listener: Listener | None = None
_observers: tuple[Listener, ...] = ()  # told after the listener, which may end the process
_about: dict[str, object] = {}  # what this process is at work on
_moments: dict[Step, float] = {}  # when this process last came to each
_last: Step | None = None


def reached(step: Step) -> None:
    """Tell the listener, if there is one, that this process has come to `step`."""
    global _last
    _moments[step], _last = time.monotonic(), step
    if _listener is not None:
        _listener(step)
    for observer in _observers:
        observer(step)


def work_on(**about: object) -> None:
    """Say what this process is at work on from here on: a pipeline's run, a batch and its delivery."""
    _about.update(about)


def at_work() -> dict[str, object]:
    """Return what this process is at work on, or was last."""
    return dict(_about)


@contextmanager
def observed_by(observer: Listener) -> Iterator[None]:
    """Tell `observer` of each step meanwhile, beside the listener that there may be."""
    global _observers
    _observers = (*_observers, observer)
    try:
        yield
    finally:
        _observers = tuple(one for one in _observers if one is not observer)


def committing() -> bool:
    """Return True if this process commits, or has committed and is not at the next delivery, by the step it last came to."""
    return _last in (*COMMIT, Step.COMMITTED, Step.BATCH_DONE)


def phases_ms() -> dict[str, int]:
    """Return how long each phase of the delivery that this process has just made took, in milliseconds."""
    return {name: round(1000 * (_moments[end] - _moments[start])) for name, (start, end) in PHASES.items()}


def listen(listener: Listener | None) -> None:
    """Install `listener` in this process; None removes it."""
    global _listener
    _listener = listener
