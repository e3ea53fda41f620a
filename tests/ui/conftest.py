from __future__ import annotations

from tests.stores import dsn, lake, template

__all__ = ["dsn", "lake", "template"]
