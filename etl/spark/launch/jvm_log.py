"""The logs of Spark's JVMs: one per launch, of which the newest are kept."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

KEPT = 20  # of those that nothing writes to any more
LAST_LINES = 15

_current: Path | None = None


@contextmanager
def opened(folder: Path) -> Iterator[IO[bytes]]:
    """Open a log for a JVM that is about to be launched, and remove the oldest logs.

    Whoever has it open holds its lock, and the JVM has it open to its own end, whatever becomes of this
    process.
    """
    global _current
    _prune(folder)
    _current = folder / f"spark-{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.log"
    with open(_current, "ab", opener=_for_this_user_alone) as log:
        with suppress(OSError):  # a file system without locks: there nothing is pruned
            fcntl.flock(log, fcntl.LOCK_SH)
        yield log


def _for_this_user_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _prune(folder: Path) -> None:
    """Remove the logs that nothing writes to any more, but for the newest."""
    ended = [file for file in folder.glob("spark*.log") if not _is_written_to(file)]
    for file in sorted(ended, key=_changed)[: -(KEPT - 1)]:  # one is about to be added
        file.unlink(missing_ok=True)


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # another launch has removed it
        return 0


def _is_written_to(file: Path) -> bool:
    try:
        with file.open("rb") as log:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def current() -> Path | None:
    """Return the log of the JVM that this process has launched last; None when it has launched none."""
    return _current


def last_lines() -> list[str]:
    """Return the last lines of the log of the JVM that this process has launched last; [] without one."""
    if _current is None or not _current.is_file():
        return []
    with _current.open("rb") as log:
        log.seek(max(0, _current.stat().st_size - 10_000))
        return log.read().decode(errors="replace").splitlines()[-LAST_LINES:]
