"""A pickle that does something when it is loaded."""

from __future__ import annotations

import os
from pathlib import Path


class Malicious:
    """What a pickle can do to who loads it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)
