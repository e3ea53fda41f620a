"""The `sluice` command."""

from __future__ import annotations

import gc
import os
import sys
from typing import NoReturn

# Of so many new objects garbage is collected. At Python's default of 700 that takes a quarter of a command's imports.
NEW_OBJECTS = 50_000


def main() -> NoReturn:
    """Run the command `sluice`, whose modules are imported now and not with the package."""
    gc.set_threshold(NEW_OBJECTS)
    use_utf8()
    from etl.cli.app import main

    main()


def use_utf8() -> None:
    """Start this process anew in Python's UTF-8 mode, if its locale has another encoding of file names.

    Java names files by UTF-8, so Python is not to name them otherwise.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        arguments = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606 - itself
