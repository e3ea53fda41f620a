from __future__ import annotations

import pytest

from etl.common import steps
from tests.support.databases import dsn, lake, template

__all__ = ["dsn", "lake", "template"]


@pytest.fixture(autouse=True)
def _no_listener() -> None:
    steps.listen(None)
