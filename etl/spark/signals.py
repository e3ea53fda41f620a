"""Handles SIGINT and SIGTERM: a command ends at once, a run after the batch in flight."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from types import FrameType
from typing import NoReturn

from etl.common.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 3.0  # that a JVM has to end, and then the command that has launched it

_left = Stopped.NOTHING_CHANGED  # of most commands, which only look
_stopped = threading.Event()
# Not the error, which would keep the frames that it came through until the interpreter is half gone.
_exit_code = 0


def leaves(left: str) -> None:
    """Note what becomes of this command's work where a signal ends it at once, from here on, to be told then."""
    global _left
    _left = left


def stop_at_once(
    number: int, _frame: FrameType | None = None, *, left: str | None = None, again: str | None = None
) -> NoReturn:
    """Raise Stopped to end the command, with signals ignored, so that none breaks into its way out.

    `left` is told instead of what the command `leaves`; `again` is the command that is to be given again.
    """
    global _exit_code
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    by = Stopped(number, left=left or _left, again=again)
    _exit_code = by.exit_code
    _stopped.set()
    raise by


def end_with_this(jvm: subprocess.Popen[bytes]) -> None:
    """End the JVM as soon as this process is stopped at once.

    Where that does not free its way out, end this process, too. A signal that breaks into a call to Spark
    leaves its connection out of step: whatever is asked next, such as to stop, would wait for the answer to
    that call, which is the end of all batches.
    """

    def wait() -> None:
        _stopped.wait()
        end(jvm)
        time.sleep(GRACE_SECONDS)
        os._exit(_exit_code)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def end(jvm: subprocess.Popen[bytes]) -> None:
    """End the JVM, whatever its threads are at: some of Java's, such as a regular expression, heed no interrupt."""
    jvm.terminate()
    try:
        jvm.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        jvm.kill()
