"""All that Sluice asks of PostgreSQL may go through a pooler that gives each transaction another session."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from etl.common.database import kept_connections, transaction
from etl.common.errors import ServiceAway
from etl.common.migrations import migrate
from etl.delivery.deliver import deliver
from etl.services import Services
from etl.services.process import free_ports
from etl.sinks.lake.lake import Lake
from tests.support import oracle
from tests.support.arrow_driver import of, start
from tests.support.databases import new_database
from tests.support.events_run import EVENTS, assert_delivered
from tests.support.waiting import until

pytestmark = pytest.mark.slow

SESSIONS = 3  # that the pooler has of the server, for all of its clients
INI = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
unix_socket_dir =
"""


@pytest.fixture
def pooled(services: Services, tmp_path: Path) -> Iterator[str]:
    """Return the connection string of an empty database by way of a PgBouncer of its own."""
    with new_database(services.postgres) as dsn, closing(psycopg2.connect(dsn)) as direct:
        known, [listen] = direct.info, free_ports(1)
        ini = tmp_path / "pgbouncer.ini"
        ini.write_text(
            INI.format(
                host=known.host,
                port=known.port,
                user=known.user,
                password=known.password,
                listen=listen,
                sessions=SESSIONS,
            )
        )
        command = [shutil.which("pgbouncer") or "pgbouncer", "--quiet", str(ini)]
        if os.getuid() == 0:  # which it refuses to stay
            command[1:1] = ["--user=nobody"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as pooler:
            try:
                through = make_dsn(dbname=known.dbname, host="127.0.0.1", port=listen, user="anybody")
                until(lambda: answers(through), "PgBouncer", patience=30)
                yield through
            finally:
                pooler.terminate()


def answers(dsn: str) -> bool:
    try:
        with transaction(dsn) as cursor:
            cursor.execute("SELECT 1")
    except ServiceAway:
        return False
    return True


def test_migrations_and_deliveries_need_no_session_of_their_own(
    pooled: str, lake: Lake, made: list[oracle.MadeBatch]
) -> None:
    with ThreadPoolExecutor(4) as several:
        applied = [name for names in several.map(lambda _: migrate(pooled), range(4)) for name in names]
    assert applied == sorted(applied) != []
    paths = {oracle.ask(pooled, "SHOW search_path")[0] for _ in range(3 * SESSIONS)}
    assert paths == {('"$user", public',)}
    with kept_connections():
        run = start(pooled, lake, EVENTS)
        for one in made:
            deliver(run, of(one))
    assert_delivered(run, made)
