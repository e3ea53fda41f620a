from __future__ import annotations

from tests.support.databases import dsn, lake, template
from tests.support.killed.runs import runs

__all__ = ["dsn", "lake", "runs", "template"]
