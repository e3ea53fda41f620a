"""The environment that lets other tools in: psql, boto3, pyarrow, DuckDB, pyiceberg."""

from __future__ import annotations

from urllib.parse import quote

from psycopg2.extensions import parse_dsn

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
    dsn = parse_dsn(place.services.postgres)
    found = {_LIBPQ[key]: value for key, value in dsn.items() if key in _LIBPQ}
    found |= place.services.environment
    found["SLUICE_HOME"] = str(place.settings.home)
    found["SLUICE_LANDING"] = place.settings.landing
    found["SLUICE_CHECKPOINTS"] = place.settings.checkpoints
    found["PYICEBERG_CATALOG__SLUICE__TYPE"] = "sql"
    found["PYICEBERG_CATALOG__SLUICE__URI"] = catalog_uri(dsn)
    found["PYICEBERG_CATALOG__SLUICE__WAREHOUSE"] = f"{place.services.lake}/warehouse"
    found["PYICEBERG_CATALOG__SLUICE__S3__REGION"] = place.services.s3_region
    if place.services.s3_endpoint:
        found["PYICEBERG_CATALOG__SLUICE__S3__ENDPOINT"] = place.services.s3_endpoint
        found["PYICEBERG_CATALOG__SLUICE__S3__FORCE_VIRTUAL_ADDRESSING"] = "false"
    return found


def catalog_uri(dsn: dict[str, str]) -> str:
    """SQLAlchemy's URI of the catalog: pyiceberg does not qualify its tables, so the search path is set."""
    user = quote(dsn.get("user", ""), safe="")
    host, port = dsn.get("host", "localhost"), dsn.get("port", "5432")
    return (
        f"postgresql+psycopg2://{user}@{host}:{port}/{dsn.get('dbname', '')}?options=-csearch_path%3Dsluice"
    )
