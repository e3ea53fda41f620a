from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg2
import pytest
from pyspark.sql import SparkSession

from etl.common.settings import Settings
from etl.runs.workspace import Workspace
from etl.services import Services
from tests.support.backups import Backup
from tests.support.databases import database_name, dsn, lake, template
from tests.support.environment import REPOSITORY
from tests.support.histories import Histories, histories_of
from tests.support.home import Home

__all__ = ["dsn", "lake", "template"]


@pytest.fixture
def home(
    tmp_path: Path,
    dsn: str,
    services: Services,
    lake_uri: str,
    settings_for: Callable[..., Settings],
    spark: SparkSession,
) -> Home:
    """Return a user's own folders, an empty database and an empty lake."""
    return Home.at(tmp_path, dsn, services, lake_uri, settings_for, spark)


@pytest.fixture(scope="module")
def histories(
    tmp_path_factory: pytest.TempPathFactory,
    template: str,
    services: Services,
    settings: Settings,
    settings_for: Callable[..., Settings],
    spark: SparkSession,
) -> Iterator[Histories]:
    """Yield what the tests of one file begin from, each of them made once."""

    def new_home(dsn: str) -> Home:
        lake = f"{services.lake}/{uuid.uuid4().hex[:12]}"
        return Home.at(tmp_path_factory.mktemp("home"), dsn, services, lake, settings_for, spark)

    with histories_of(new_home, template, services, settings, tmp_path_factory.mktemp("kept")) as found:
        yield found


@pytest.fixture
def shipped(home: Home) -> Home:
    """Return a place whose pipelines and suites are the repository's own."""
    folders = {"pipelines": (REPOSITORY / "etl" / "pipelines",), "suites": (REPOSITORY / "expectations",)}
    settings = home.place.settings.model_copy(update=folders)
    return replace(home, place=Workspace(settings=settings, services=home.place.services))


@pytest.fixture
def backup(home: Home, services: Services) -> Iterator[Backup]:
    database = database_name(home.dsn)
    found = Backup(server=services.postgres, database=database, name=f"{database}_backup")
    yield found
    connection = psycopg2.connect(services.postgres)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE IF EXISTS "{found.name}" WITH (FORCE)')
    connection.close()
