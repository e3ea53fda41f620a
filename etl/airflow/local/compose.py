"""Sets up what docker-compose.yml needs before its other services start: Airflow's database, the bucket, the login.

Run again, it changes nothing but the passwords of the login, to those that are set now.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import psycopg2

from etl import services
from etl.airflow.local.environment import DATABASE, USERS
from etl.common.database import create_database
from etl.common.paths import s3_client
from etl.common.settings import load_settings
from etl.services.process import make_folder, write_secret

LOGIN_VARIABLE = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"


def main() -> None:
    settings = load_settings()
    running = services.up(settings)
    os.environ.update(running.environment)
    _make_database(running.postgres)
    _make_bucket(running.lake)
    _write_login(Path(os.environ[LOGIN_VARIABLE]))


def _make_database(dsn: str) -> None:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True  # CREATE DATABASE can't run in a transaction
    with contextlib.closing(connection), connection.cursor() as cursor:
        create_database(cursor, DATABASE)


def _make_bucket(lake: str) -> None:
    bucket = lake.removeprefix("s3://").partition("/")[0]
    client = s3_client()
    if bucket not in {one["Name"] for one in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=bucket)


def _write_login(login: Path) -> None:
    make_folder(login.parent, 0o700)
    write_secret(login, json.dumps({user: os.environ[f"{user.upper()}_PASSWORD"] for user in USERS}))


if __name__ == "__main__":
    main()
