"""PostgreSQL and S3 as one frozen object, wherever they are: the user's own, or embedded and started here.

`up` starts what is not running and may be called by any number of commands at once; `down` leaves no
process; data stays in between. Nothing here prints or returns a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from etl.common.errors import ServiceAway, SetupError
from etl.common.settings import Settings
from etl.services import postgres, s3
from etl.services.jarsets import JarSet, installed_java, jars, java, java_version, spark_jars
from etl.services.process import only_one

__all__ = [
    "JarSet",
    "Services",
    "Status",
    "down",
    "find_postgres",
    "installed_java",
    "jars",
    "java",
    "java_version",
    "spark_jars",
    "status",
    "up",
]


@dataclass(frozen=True, kw_only=True)
class Services:
    """How to reach both services."""

    postgres: str = field(repr=False)  # libpq connection string; the embedded one's password is in a file
    lake: str  # s3://bucket[/prefix], no trailing slash
    s3_endpoint: str | None  # None: AWS itself
    s3_region: str
    environment: Mapping[str, str]  # for os.environ, before any S3 client is made


@dataclass(frozen=True, kw_only=True)
class Status:
    """What one embedded service is doing."""

    service: str
    port: int | None  # None: not running
    folder: str
    log: str


def up(settings: Settings) -> Services:
    """Start the embedded services that do not run yet, and return how to reach PostgreSQL and S3."""
    _refuse_airflows(settings)
    if not (settings.embedded_postgres or settings.embedded_s3):
        return _services(settings, None, None)
    with only_one(settings.home), _not_alone(settings):
        port = s3.start(_s3(settings)) if settings.embedded_s3 else None
        dsn = postgres.start(_postgres(settings)) if settings.embedded_postgres else None
    return _services(settings, dsn, port)


def _refuse_airflows(settings: Settings) -> None:
    """Raise SetupError where a service would be embedded that is elsewhere, and only Airflow's processes know where."""
    if settings.embedded_postgres and (name := settings.connections.get("postgres")):
        raise SetupError(
            f"PostgreSQL is where Airflow's Connection {name} says, and only Airflow's tasks and pages have that",
            remedy="name the server in SLUICE_POSTGRES here as well",
        )


@contextmanager
def _not_alone(settings: Settings) -> Iterator[None]:
    """Stop the S3 server after a failure within, if it did not run before."""
    ran = s3.running(_s3(settings)) is not None
    try:
        yield
    except BaseException:
        # PostgreSQL is left as it is: it may be at work on its recovery, which would begin again
        if not ran:
            s3.stop(_s3(settings))
        raise


def down(settings: Settings) -> tuple[str, ...]:
    """Stop the embedded services, and return the names of those that ran."""
    if not settings.home.is_dir():
        return ()
    with only_one(settings.home):
        stopped = {"postgres": postgres.stop(_postgres(settings)), "s3": s3.stop(_s3(settings))}
    return tuple(name for name, ran in stopped.items() if ran)


def find_postgres(settings: Settings) -> str:
    """Return the connection string of a PostgreSQL that runs; start nothing. Raises ServiceAway."""
    if settings.postgres is not None:
        return settings.postgres.get_secret_value()
    _refuse_airflows(settings)
    database = _postgres(settings)
    port = postgres.running(database)
    if port is None:
        raise ServiceAway(
            "the embedded PostgreSQL does not run", remedy="`sluice up`, then run the same command again"
        )
    return database.dsn(port)


def status(settings: Settings) -> tuple[Status, ...]:
    """Return the state of the embedded services that these settings use, running or not; start nothing."""
    states = []
    if settings.embedded_postgres:
        database = _postgres(settings)
        port = postgres.running(database)
        states.append(
            Status(service="postgres", port=port, folder=str(database.folder), log=str(database.log))
        )
    if settings.embedded_s3:
        store = _s3(settings)
        port = s3.running(store)
        states.append(Status(service="s3", port=port, folder=str(store.folder), log=str(store.log)))
    return tuple(states)


def _postgres(settings: Settings) -> postgres.Postgres:
    return postgres.cluster(settings.home, settings.postgres_port)


def _s3(settings: Settings) -> s3.S3:
    return s3.S3(home=settings.home, jars=settings.jars, port=settings.s3_port, region=settings.s3_region)


def _services(settings: Settings, dsn: str | None, port: int | None) -> Services:
    if dsn is None:
        assert settings.postgres is not None
        dsn = settings.postgres.get_secret_value()
    if port is None:
        assert settings.lake is not None
        address, lake = settings.s3_endpoint, settings.lake
        environment = dict.fromkeys(("AWS_REGION", "AWS_DEFAULT_REGION"), settings.s3_region)
        environment |= {"AWS_ENDPOINT_URL_S3": address} if address else {}
    else:
        store = _s3(settings)
        address, lake, environment = s3.endpoint(port), store.lake, store.environment(port)
    return Services(
        postgres=dsn,
        lake=lake,
        s3_endpoint=address,
        s3_region=settings.s3_region,
        environment=MappingProxyType(environment),
    )
