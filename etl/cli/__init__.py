"""The `sluice` command."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from typing import NoReturn

# Of so many new objects garbage is collected. At Python's default of 700 that takes a quarter of a command's imports.
NEW_OBJECTS = 50_000


def main() -> NoReturn:
    """Run the command `sluice`, whose modules are imported now and not with the package."""
    gc.set_threshold(NEW_OBJECTS)
    # Python's end would look for garbage in all that was imported, which takes a fifth of a short command.
    atexit.register(gc.freeze)
    use_utf8()
    write_all()
    from etl.cli.app import main

    main()


def write_all() -> None:
    """Write out what the encoding of the output lacks, such as `\\xe4` in ASCII: no text may end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def use_utf8() -> None:
    """Start this process anew in Python's UTF-8 mode, if its locale has another encoding of file names.

    Java names files by UTF-8, so Python is not to name them otherwise.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        arguments = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606 - itself
