"""The named steps of the delivery protocol, in their order.

The protocol's model and the crash tests speak of the same names. In a log `reached` does nothing; a terminal
shows where a batch is, and a crash test installs a listener that stops the process there.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class Step(StrEnum):
    LEASE_TAKEN = "lease-taken"
    ATTEMPT_OPENED = "attempt-opened"
    # on the executors, within one task
    OBJECT_OPENED = "object-opened"
    ROWS_COPIED = "rows-copied"
    TASK_COMMITTED = "task-committed"
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

_listener: Listener | None = None


def reached(step: Step) -> None:
    """Tell the listener, if there is one, that this process has come to `step`."""
    if _listener is not None:
        _listener(step)


def listen(listener: Listener | None) -> None:
    """Install `listener` in this process; None removes it."""
    global _listener
    _listener = listener
