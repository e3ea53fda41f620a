from __future__ import annotations

from tests.crash.killed import runs
from tests.stores import dsn, lake, template

__all__ = ["dsn", "lake", "runs", "template"]
