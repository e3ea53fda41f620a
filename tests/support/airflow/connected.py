"""Connections of Airflow, as its backends keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from psycopg2.extensions import parse_dsn


def as_connection(dsn: str) -> dict[str, Any]:
    """Return the Connection of a database, as a secrets backend has it; its password is taken from the passfile."""
    told = parse_dsn(dsn)
    [password] = [
        line.split(":")[4]
        for line in Path(told["passfile"]).read_text().splitlines()
        if f":{told['user']}:" in line
    ]
    return {
        "conn_type": "postgres",
        "host": told["host"],
        "port": int(told["port"]),
        "login": told["user"],
        "password": password,
        "schema": told["dbname"],
        "extra": {"application_name": "sluice by Airflow", "cursor": "dictcursor"},
    }
