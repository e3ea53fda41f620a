from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from etl.common.settings import Settings
from etl.services import Services
from tests.support.data.orders import rule
from tests.support.databases import dsn, lake, template
from tests.support.home import Home
from tests.support.kafka.broker import Broker, a_broker
from tests.support.kafka.topics import NEGATIVE, Topics

__all__ = ["dsn", "lake", "template"]


@pytest.fixture(scope="session")
def broker(settings: Settings) -> Iterator[Broker]:
    """Run the one broker of all tests that do not kill it."""
    with a_broker(settings.jars) as found:
        yield found


@pytest.fixture
def topics(spark: SparkSession, broker: Broker) -> Topics:
    return Topics(spark=spark, servers=broker.servers)


@pytest.fixture
def home(
    tmp_path: Path,
    dsn: str,
    services: Services,
    lake_uri: str,
    settings_for: Callable[..., Settings],
    spark: SparkSession,
    broker: Broker,
) -> Home:
    """Return a user's own folders, an empty database, an empty lake and the broker."""
    found = Home.at(tmp_path, dsn, services, lake_uri, settings_for, spark, kafka=broker.servers)
    found.judge(rule("column_values_to_be_between", NEGATIVE, "warning", column="amount", min_value=0))
    return found
