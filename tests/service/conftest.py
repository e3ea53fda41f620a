from __future__ import annotations

from collections.abc import Iterator

import pytest

from etl.common import steps
from etl.common.database import kept_connections
from etl.delivery.batch import DeliveryContext
from etl.sinks.lake.lake import Lake
from tests.support import oracle
from tests.support.arrow_driver import start
from tests.support.databases import dsn, lake, template
from tests.support.events_run import EVENTS
from tests.support.told import told

__all__ = ["dsn", "lake", "template", "told"]


@pytest.fixture
def made() -> list[oracle.MadeBatch]:
    return oracle.make(seed=7, batches=3, rows=40)


@pytest.fixture
def run(dsn: str, lake: Lake) -> DeliveryContext:
    return start(dsn, lake, EVENTS)


@pytest.fixture
def kept() -> Iterator[None]:
    """Keep connections, as a run does."""
    with kept_connections():
        yield


@pytest.fixture(autouse=True)
def _no_listener() -> None:
    steps.listen(None)
