from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from etl import sparksession
from etl.services import Services
from etl.settings import Settings
from tests.spark.runs import Home
from tests.stores import dsn, lake, template

__all__ = ["dsn", "lake", "template"]


@pytest.fixture(scope="session")
def spark(settings: Settings, services: Services) -> Iterator[SparkSession]:
    """The one session of all tests in which nothing is killed; it is set as a run's own is."""
    here = settings.model_copy(update={"spark_master": "local[2]"})
    session = sparksession.start(here, services)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def home(
    tmp_path: Path,
    dsn: str,
    services: Services,
    lake_uri: str,
    settings_for: Callable[..., Settings],
    spark: SparkSession,
) -> Home:
    """A user's own folders, an empty database and an empty lake."""
    return Home.at(tmp_path, dsn, services, lake_uri, settings_for, spark)
