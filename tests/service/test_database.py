"""Transactions are whole and bounded, and their errors tell what happened."""

from __future__ import annotations

import uuid
from contextlib import closing
from io import BytesIO
from typing import Any

import psycopg2
import pytest
from psycopg2 import sql
from psycopg2.extensions import make_dsn

from etl.common import database
from etl.common.database import (
    Cursor,
    Pool,
    connect,
    constraint_of,
    copy_out,
    create_database,
    is_lost,
    savepoint,
    transaction,
)
from etl.common.errors import ServiceAway, SetupError
from etl.common.migrations import migrate
from etl.common.outages import service_error
from etl.services import Services
from tests.support import oracle
from tests.support.databases import drop
from tests.support.postgres_proxy import Proxy, before
from tests.support.waiting import until


def test_a_transaction_is_whole_or_nothing(dsn: str) -> None:
    with transaction(dsn) as cursor:
        cursor.execute("CREATE TABLE one (id int)")

    def fails_after_its_first_row() -> None:
        with transaction(dsn) as cursor:
            cursor.execute("INSERT INTO one VALUES (1)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_after_its_first_row()
    assert oracle.ask(dsn, "SELECT id FROM one") == []


def test_a_savepoint_takes_back_what_failed_within_it_alone(dsn: str) -> None:
    def fails_after_others_within(cursor: Cursor) -> None:
        with savepoint(cursor):
            cursor.execute("INSERT INTO one VALUES (2)")
            with savepoint(cursor):
                cursor.execute("INSERT INTO one VALUES (3)")
            with pytest.raises(psycopg2.errors.UndefinedTable), savepoint(cursor):
                cursor.execute("INSERT INTO nowhere VALUES (4)")
            cursor.execute("SELECT 1 / 0")

    with transaction(dsn) as cursor:
        cursor.execute("CREATE TABLE one (id int)")
        with savepoint(cursor):
            cursor.execute("INSERT INTO one VALUES (1)")
        with pytest.raises(psycopg2.errors.DivisionByZero):
            fails_after_others_within(cursor)
        cursor.execute("INSERT INTO one VALUES (5)")
    assert oracle.ask(dsn, "SELECT id FROM one ORDER BY id") == [(1,), (5,)]


def test_a_savepoint_of_a_connection_that_broke_says_what_broke_it(dsn: str) -> None:
    ended = "terminating connection|server closed the connection"  # whichever of the two libpq saw first
    with (
        pytest.raises(psycopg2.OperationalError, match=ended),
        transaction(dsn) as cursor,
        savepoint(cursor),
    ):
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def test_a_database_is_created_where_it_is_missing(services: Services) -> None:
    name = f"made_{uuid.uuid4().hex[:8]}"
    owned = "SELECT pg_get_userbyid(datdba) = current_user FROM pg_database WHERE datname = %s"
    with closing(connect(services.postgres)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        try:
            create_database(cursor, name)
            create_database(cursor, name, owner="nobody_who_is_there")
            assert oracle.ask(services.postgres, owned, (name,)) == [(True,)]
        finally:
            drop(services.postgres, name)


def test_a_transaction_has_its_own_timeouts_and_zone_and_leaves_none(dsn: str) -> None:
    with closing(Pool(make_dsn(dsn, options="-c timezone=Europe/Berlin"))) as pool:
        with pool.transaction() as cursor:
            for name, value in database.TIMEOUTS.items():
                cursor.execute("SELECT current_setting(%s)::interval = %s::interval", (name, value))
                assert cursor.fetchone() == (True,)
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("read committed",)
            cursor.execute("SHOW timezone")
            assert cursor.fetchone() == ("UTC",)
        with cursor.connection.cursor() as after:
            after.execute("SHOW lock_timeout")
            assert after.fetchone() == ("0",)
            after.execute("SHOW timezone")
            assert after.fetchone() == ("Europe/Berlin",)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("off", "on"),
        ("local", "on"),
        ("on", "on"),
        ("remote_write", "remote_write"),
        ("remote_apply", "remote_apply"),
    ],
)
def test_a_commit_is_on_disk_before_it_is_acknowledged_whatever_the_role_says(
    dsn: str, theirs: str, ours: str
) -> None:
    with closing(Pool(make_dsn(dsn, options=f"-c synchronous_commit={theirs}"))) as pool:
        with pool.transaction() as cursor:
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == (ours,)
        with cursor.connection.cursor() as after:
            after.execute("SHOW synchronous_commit")
            assert after.fetchone() == (theirs,)


def test_a_server_that_is_away_is_told_so(dsn: str) -> None:
    with pytest.raises(ServiceAway) as away, transaction(make_dsn(dsn, port=1)):
        raise AssertionError("there is no server")
    assert away.value.exit_code == 75
    assert "password" not in str(away.value)


def test_a_lost_connection_is_told_from_an_error(dsn: str) -> None:
    connection = connect(dsn)
    with connection.cursor() as cursor:
        with pytest.raises(psycopg2.Error) as wrong:
            cursor.execute("SELECT 1/0")
        assert not is_lost(wrong.value)
        connection.rollback()
        cursor.execute("SET statement_timeout = 1")
        with pytest.raises(psycopg2.errors.QueryCanceled) as slow:
            cursor.execute("SELECT pg_sleep(60)")
        assert not is_lost(slow.value)
        connection.rollback()
        oracle.ask(dsn, "SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        with pytest.raises(psycopg2.Error) as lost:
            cursor.execute("SELECT 1")
        assert is_lost(lost.value)
        assert isinstance(service_error(lost.value), ServiceAway)
    with pytest.raises(psycopg2.InterfaceError) as closed:
        connection.cursor()
    assert is_lost(closed.value)


@pytest.mark.parametrize("limit", ["transaction_timeout", "idle_in_transaction_session_timeout"])
def test_a_limit_that_ends_the_session_loses_the_connection(dsn: str, limit: str) -> None:
    there = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET {limit} = '100ms'")
        pid = connection.info.backend_pid
        until(lambda: not oracle.ask(dsn, there, (pid,)), "the session to be ended", patience=60)
        with pytest.raises(psycopg2.Error) as lost:
            cursor.execute("SELECT 1")
    assert is_lost(lost.value)
    assert isinstance(service_error(lost.value), ServiceAway)


@pytest.mark.parametrize(
    ("setting", "by", "reset"),
    [
        ("ALTER DATABASE {database} SET", "the database's settings", "`ALTER DATABASE {database} RESET"),
        (
            "ALTER ROLE {role} IN DATABASE {database} SET",
            "the role's settings in this database",
            "`ALTER ROLE {role} IN DATABASE {database} RESET",
        ),
        (None, "the connection's options", "take default_transaction_read_only out of SLUICE_POSTGRES"),
    ],
)
def test_a_setting_that_refuses_writes_is_named_with_how_to_reset_it(
    dsn: str, setting: str | None, by: str, reset: str
) -> None:
    [(role, name)] = oracle.ask(dsn, "SELECT quote_ident(session_user), quote_ident(current_database())")
    if setting is None:
        dsn = make_dsn(dsn, options="-c default_transaction_read_only=on")
    else:
        oracle.ask(dsn, f"{setting.format(role=role, database=name)} default_transaction_read_only = on")
    assert migrate(dsn) == []
    told = f"write nothing in database {name}: .* is on, by {by}"
    with pytest.raises(SetupError, match=told) as refused, transaction(dsn) as cursor:
        cursor.execute("DELETE FROM sluice.pipeline")
    assert reset.format(role=role, database=name) in refused.value.remedy
    with pytest.raises(SetupError, match=told):
        connect(make_dsn(dsn, target_session_attrs="read-write"))


def test_a_unique_violation_names_its_constraint(dsn: str) -> None:
    with transaction(dsn) as cursor:
        cursor.execute(
            "CREATE TABLE one (id int CONSTRAINT only_one UNIQUE CONSTRAINT positive CHECK (id > 0))"
        )
        cursor.execute("INSERT INTO one VALUES (1)")
    for value, name in ((1, "only_one"), (-1, None)):
        with pytest.raises(psycopg2.IntegrityError) as refused, transaction(dsn) as cursor:
            cursor.execute("INSERT INTO one VALUES (%s)", (value,))
        assert constraint_of(refused.value) == name


def test_an_old_server_is_refused(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "OLDEST_SERVER", 990000)
    with pytest.raises(SetupError, match="99 or later is needed"):
        migrate(dsn)


def test_a_database_that_cannot_hold_every_text_is_refused(services: Services) -> None:
    name = f"test_{uuid.uuid4().hex[:12]}"
    connection = connect(services.postgres)
    connection.autocommit = True
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        try:
            with pytest.raises(SetupError, match=r"encoding is LATIN1.*UTF8 is needed"):
                migrate(make_dsn(services.postgres, dbname=name))
        finally:
            drop(services.postgres, name)


class Cutting(BytesIO):
    """A file of a COPY that cuts all connections of a proxy when it is written to, or read once more."""

    def __init__(self, proxy: Proxy, content: bytes = b"") -> None:
        super().__init__(content)
        self._proxy = proxy

    def write(self, row: Any) -> int:
        self._proxy.end_all()
        return super().write(row)

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            self._proxy.end_all()
        return super().read(size)


def test_a_connection_that_is_lost_while_rows_come_by_copy_is_known_to_be(dsn: str) -> None:
    many = sql.SQL("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 100000)) TO STDOUT")
    with before(dsn) as proxy, closing(connect(proxy.dsn(dsn))) as connection, connection.cursor() as cursor:
        with pytest.raises(psycopg2.Error) as lost:
            copy_out(cursor, many, Cutting(proxy))
        assert is_lost(lost.value), repr(lost.value)


def test_a_connection_that_is_lost_while_rows_go_by_copy_is_known_to_be(dsn: str) -> None:
    oracle.ask(dsn, "CREATE TABLE taken (number int)")
    many = b"".join(b"%d\n" % number for number in range(1_000_000))
    with before(dsn) as proxy, closing(connect(proxy.dsn(dsn))) as connection, connection.cursor() as cursor:
        with pytest.raises(psycopg2.Error) as lost:
            cursor.copy_expert("COPY taken FROM STDIN", Cutting(proxy, many))
        assert is_lost(lost.value), repr(lost.value)


def test_what_postgresql_refuses_of_a_copy_is_no_lost_connection(dsn: str) -> None:
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        with pytest.raises(psycopg2.errors.DivisionByZero) as refused:
            copy_out(cursor, sql.SQL("COPY (SELECT 1 / 0) TO STDOUT"), BytesIO())
        assert not is_lost(refused.value)
