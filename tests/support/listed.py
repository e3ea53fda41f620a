"""Which folders this process lists, as Python's interpreter reports it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Listed:
    """The folders that this process lists, as Python's interpreter reports it."""

    below: str = ""  # of which folder; empty: none is noted
    folders: list[str] = field(default_factory=list)

    def hear(self, event: str, args: tuple[object, ...]) -> None:
        if event == "os.scandir" and self.below and str(args[0]).startswith(self.below):
            self.folders.append(os.path.relpath(str(args[0]), self.below))


LISTED = Listed()
sys.addaudithook(LISTED.hear)


@contextmanager
def listed(below: Path) -> Iterator[list[str]]:
    LISTED.below, LISTED.folders = str(below), []
    try:
        yield LISTED.folders
    finally:
        LISTED.below = ""
