from __future__ import annotations

from tests.support.databases import dsn, lake, template

__all__ = ["dsn", "lake", "template"]
