"""Real embedded services for the whole session, and nothing of the caller's own SLUICE_* or AWS settings."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg2
import pytest
from psycopg2 import sql
from psycopg2.extensions import parse_dsn
from xdist.scheduler import LoadScopeScheduling

from etl import services as embedded
from etl.cli import NEW_OBJECTS
from etl.common.settings import Settings
from etl.services import Services
from tests.support.databases import new_database
from tests.support.environment import FOREIGN, JARS, give_main_a_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.workermanage import WorkerController

SET_BY_PYTEST = {"PYTEST_CURRENT_TEST"}
MEMORY, MEMORY_WANTED = Path("/dev/shm"), 8 << 30  # free bytes
MANY_DESCRIPTORS = 800  # of the 1,024 that many a shell allows; some 300 stay open in a process of many files


def pytest_configure() -> None:
    gc.set_threshold(NEW_OBJECTS)
    give_main_a_file()
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it takes leave after pytest has closed the log
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    # Each test's stream is short: what the JVM's second compiler would win later, it costs now. The first alone has a
    # cache of a fifth, and would throw code away and compile it again.
    os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"


DAGS, KAFKA = "tests/dags", "tests/kafka"
# of these two, with an Airflow or a broker of their own, or none
ALONE = (
    "test_airflow.py",
    "test_alerts.py",
    "test_asking.py",
    "test_dags.py",
    "test_declarations.py",
    "test_retry_policy.py",
    "test_process.py",
    "test_ads.py",
    "test_brokers_away.py",
    "test_kills.py",
)


class Whole(LoadScopeScheduling):
    """Each process has services and a JVM of its own: files stay whole.

    One Airflow serves all of DAGS but ALONE, and one broker all of KAFKA: of several processes one begins with DAGS, for
    it waits for Airflow most of the time, and one with KAFKA, so that nobody is waited for in the end.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0]
        return folder if folder in (DAGS, KAFKA) and not file.endswith(ALONE) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        if len(self.nodes) > 1:
            for long in (KAFKA, DAGS):
                if long in self.workqueue:
                    self.workqueue.move_to_end(long, last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return Whole(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture(autouse=True)
def few_connections_are_left() -> Iterator[None]:
    """Close what pyiceberg's clients hold: a client holds itself, and is looked for seldom in so large a heap."""
    yield
    if psutil.Process().num_fds() > MANY_DESCRIPTORS:
        gc.collect()


@pytest.fixture(autouse=True)
def the_environment_is_left_as_it_was() -> Iterator[None]:
    """Fail a test that leaves a variable behind: the next file of its process would run in another environment.

    What fixtures of a session set lives on: it is set before, or belongs to the services.
    """
    before = dict(os.environ)
    yield
    changed = {name for name in before | dict(os.environ) if before.get(name) != os.environ.get(name)}
    assert changed <= SET_BY_PYTEST, f"a test left behind: {sorted(changed - SET_BY_PYTEST)}"


@pytest.fixture(scope="session")
def short_home() -> Iterator[Path]:
    """Make a folder that any system user may pass through; pytest's own temporary folders are closed to them.

    It is in memory where that has room: each test's database is some 300 files that are made, and removed again. An ext4
    without a journal passes over what was removed in the last seconds, one by one, for each file that it makes: that took a
    fifth of the whole suite's processor time.
    """
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_WANTED
    folder = Path(tempfile.mkdtemp(prefix="sluice-", dir=MEMORY if roomy else None))
    folder.chmod(0o711)
    # an empty file, so that no sluice.toml further up is found
    (folder / "sluice.toml").touch()
    os.environ["SLUICE_CONFIG"] = str(folder / "sluice.toml")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def settings(short_home: Path) -> Settings:
    """Return the session's settings: both services embedded, on free ports."""
    return Settings(home=short_home / "home", jars=JARS)


@pytest.fixture(scope="session")
def services(settings: Settings) -> Iterator[Services]:
    """Both services, running; the AWS chain finds them. One that does not start fails the test."""
    try:
        found = embedded.up(settings)
        os.environ.update(found.environment)
        spare_time(found.postgres)
        yield found
    finally:
        embedded.down(settings)


def spare_time(dsn: str) -> None:
    """Let PostgreSQL wait for no disk, and hash passwords once instead of 4,096 times: 5 ms of each connection's 8.

    Processes are killed in these tests, the machine is not: what PostgreSQL wrote outlives them without fsync.
    """
    lines = [line.split(":", 4)[3:] for line in Path(parse_dsn(dsn)["passfile"]).read_text().splitlines()]
    passwords = dict(lines)
    connection = psycopg2.connect(dsn, user="postgres", password=passwords["postgres"], dbname="postgres")
    with closing(connection), connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("ALTER SYSTEM SET fsync = off")
        cursor.execute("SELECT pg_reload_conf()")
        cursor.execute("SET scram_iterations = 1")
        for role, password in passwords.items():
            change = sql.SQL("ALTER ROLE {} PASSWORD {}")
            cursor.execute(change.format(sql.Identifier(role), sql.Literal(password)))


@pytest.fixture(scope="session")
def spark(settings: Settings, services: Services) -> Iterator[SparkSession]:
    """Start the one session of all tests in which nothing is killed; it is set as a run's own is.

    It has one core: of a few rows each further task costs a fifth of a batch. Runs in processes of their own, which are
    killed, followed or started by Airflow, have several.
    """
    from etl.spark.session import start

    here = settings.model_copy(update={"spark_master": "local[1]"})
    session = start(here, services)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def database(services: Services) -> Iterator[str]:
    """Return the connection string of an empty database; drop it at the end, whoever is still connected."""
    with new_database(services.postgres) as found:
        yield found


@pytest.fixture
def lake_uri(services: Services) -> str:
    """Return an s3:// prefix that nobody else uses."""
    return f"{services.lake}/{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def settings_for(services: Services, settings: Settings) -> Callable[..., Settings]:
    """Makes settings with the session's services and a home of their own: settings_for(tmp_path, …)."""

    def make(home: Path, **changes: object) -> Settings:
        values = {
            "home": home,
            "jars": settings.jars,
            "postgres": services.postgres,
            "lake": services.lake,
            "s3_endpoint": services.s3_endpoint,
            "s3_region": services.s3_region,
        }
        return Settings.model_validate(values | changes)

    return make
