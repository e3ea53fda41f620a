"""Migrations run once, transactions are whole and bounded, and their errors tell what happened."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from etl.common import database
from etl.common.database import (
    Connection,
    Cursor,
    Pool,
    connect,
    constraint_of,
    create_database,
    is_lost,
    migrate,
    savepoint,
    transaction,
)
from etl.common.errors import Busy, ServiceAway, SetupError
from etl.common.outages import service_error
from etl.common.statements import SQL_FOLDER
from etl.ledger import leases, pipelines
from etl.services import Services
from tests.support import oracle
from tests.support.databases import drop, new_database
from tests.support.waiting import until

MIGRATIONS = [path.stem for path in sorted((SQL_FOLDER / "migrations").glob("*.sql"))]

RUN = "00000000-0000-4000-8000-000000000002"
LEDGER = """
INSERT INTO sluice.pipeline (name, table_schema, table_name) VALUES ('p', 's', 't');
INSERT INTO sluice.stream VALUES ('00000000-0000-4000-8000-000000000001', 'p', 'c', 0);
INSERT INTO sluice.run (run_id, pipeline, holder) VALUES ('00000000-0000-4000-8000-000000000002', 'p', 'h');
"""
INSERT = """
INSERT INTO sluice.delivery (delivery_id, pipeline, stream_id, batch_id, commit_seq, run_id, rows_in,
    delivered, quarantined, malformed, checksum, quarantine_checksum, suite_digest, lookups, manifest,
    metadata_location, quarantine_metadata_location)
VALUES (%s, 'p', '00000000-0000-4000-8000-000000000001', %s, %s, '00000000-0000-4000-8000-000000000002',
    10, %s, %s, %s, 0, 0, '', '{}', '', '', '')
"""
WAITING = "SELECT 1 FROM pg_locks WHERE relation = ('sluice.' || %s)::regclass AND NOT granted"
IN_LINE = """
SELECT 1 FROM pg_locks
WHERE locktype = 'advisory' AND objid = %s AND NOT granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
MIGRATE = """
import sys
from pathlib import Path
from etl.common import database

database.MIGRATIONS = Path(sys.argv[2])
database.migrate(sys.argv[1])
"""


@pytest.fixture
def empty(services: Services) -> Iterator[str]:
    with new_database(services.postgres) as dsn:
        yield dsn


def test_migrating_twice_changes_nothing(empty: str) -> None:
    assert migrate(empty) == MIGRATIONS
    assert migrate(empty) == []


def test_two_that_migrate_at_once_apply_each_migration_once(empty: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        applied = [name for names in pool.map(lambda _: migrate(empty), range(4)) for name in names]
    assert applied == MIGRATIONS


def test_a_schema_that_is_up_to_date_waits_for_nobody(empty: str) -> None:
    migrate(empty)
    with closing(psycopg2.connect(empty)) as other, other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (database.MIGRATION_LOCK,))
        assert migrate(empty) == []


def test_a_newer_schema_is_left_as_it_is(empty: str) -> None:
    migrate(empty)
    mark = "INSERT INTO sluice._yoyo_migration (migration_hash, migration_id) VALUES ('later', '9999.later')"
    oracle.ask(empty, mark)
    assert migrate(empty) == []


def test_a_schema_for_staging_that_no_backup_has_is_made_again(empty: str) -> None:
    migrate(empty)
    oracle.ask(empty, "DROP SCHEMA sluice_stage CASCADE")
    assert migrate(empty) == []
    assert oracle.ask(empty, "SELECT to_regnamespace('sluice_stage') IS NOT NULL") == [(True,)]


@pytest.fixture
def older(empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a database that lacks the last five migrations, with a pipeline that a run has the lease of."""
    with monkeypatch.context() as patched:
        patched.setattr(database, "MIGRATIONS", migrations(tmp_path / "older", MIGRATIONS[:-5]))
        assert migrate(empty) == MIGRATIONS[:-5]
    oracle.ask(empty, f"{LEDGER}; UPDATE sluice.pipeline SET lease_token = '{RUN}'")
    return empty


def migrations(folder: Path, names: Sequence[str], **others: str) -> Path:
    """Make a folder of some of the migrations, and of others by their texts."""
    folder.mkdir()
    texts = {name: (SQL_FOLDER / "migrations" / f"{name}.sql").read_text() for name in names}
    for name, text in {**texts, **others}.items():
        (folder / f"{name}.sql").write_text(text)
    return folder


def test_an_older_schema_gets_what_it_lacks(older: str) -> None:
    assert migrate(older) == MIGRATIONS[-5:]


def test_a_migration_beside_a_run_waits_for_its_commit_and_holds_up_neither_that_nor_its_heartbeats(
    older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "FIRST_LOCK_MS", 500)
    lease = leases.Lease(pipeline="p", run_id=RUN)
    with ThreadPoolExecutor(1) as pool, closing(connect(older)) as other:
        with other, other.cursor() as commit:
            assert pipelines.lock(commit, "p") is not None
            migrating = pool.submit(migrate, older)
            until(lambda: oracle.ask(older, WAITING, ("pipeline",)), "the migration to wait", patience=60)
            with transaction(older) as cursor:
                assert leases.heartbeat(cursor, lease)
            until(lambda: oracle.ask(older, WAITING, ("pipeline",)), "it to wait once more", patience=60)
            assert not migrating.done()
            commit.execute(INSERT, (1, 0, 1, 8, 2, 0))
        assert migrating.result() == MIGRATIONS[-5:]
    assert oracle.ask(older, "SELECT delivery_id FROM sluice.delivery") == [(1,)]


@pytest.mark.parametrize("theirs", ["pipeline", "run"])
def test_a_migration_whose_tables_others_use_all_the_time_is_given_up(
    older: str, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    monkeypatch.setattr(database, "LOCKING_SECONDS", 0)
    monkeypatch.setattr(database, "FIRST_LOCK_MS", 100)
    with closing(connect(older)) as other, other, other.cursor() as cursor:
        cursor.execute(f"SELECT FROM sluice.{theirs}")
        with pytest.raises(Busy, match=r"The ledger's tables are to be changed") as busy:
            migrate(older)
    assert "end the runs that are up" in busy.value.remedy
    assert migrate(older) == MIGRATIONS[-5:]


def test_migrations_are_applied_together_or_not_at_all(
    empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = migrations(tmp_path / "failing", MIGRATIONS, **{"9999.fails": "SELECT 1 / 0"})
    with monkeypatch.context() as patched:
        patched.setattr(database, "MIGRATIONS", failing)
        with pytest.raises(psycopg2.errors.DivisionByZero):
            migrate(empty)
    assert oracle.ask(empty, "SELECT to_regnamespace('sluice'), to_regnamespace('sluice_stage')") == [
        (None, None)
    ]
    assert migrate(empty) == MIGRATIONS
    assert oracle.ask(empty, "SELECT count(DISTINCT xmin::text) FROM sluice._yoyo_migration") == [(1,)]


def test_a_process_that_is_killed_while_it_migrates_leaves_all_of_it_to_who_waits(
    empty: str, tmp_path: Path
) -> None:
    waits = {"9999.waits": "SELECT pg_advisory_xact_lock(1)"}
    folder = migrations(tmp_path / "waiting", MIGRATIONS, **waits)
    with ThreadPoolExecutor(1) as pool, closing(connect(empty)) as other:
        with other, other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(1)")
            with subprocess.Popen([sys.executable, "-c", MIGRATE, empty, str(folder)]) as killed:
                until(lambda: oracle.ask(empty, IN_LINE, (1,)), "the process to wait", patience=60)
                migrating = pool.submit(migrate, empty)
                lock = (database.MIGRATION_LOCK,)
                until(lambda: oracle.ask(empty, IN_LINE, lock), "the other one to wait", patience=60)
                killed.kill()
            assert not migrating.done()
        assert migrating.result() == MIGRATIONS


def test_migrations_leave_nothing_in_their_session(empty: str) -> None:
    """A pooler may give it to somebody else, and another one to the next transaction.

    The language of our functions, once it is loaded, has settings of its own in each session.
    """
    kept = """
        SELECT name, setting FROM pg_settings WHERE name NOT LIKE 'plpgsql.%'
        UNION ALL SELECT name, 'prepared' FROM pg_prepared_statements
        UNION ALL SELECT pg_listening_channels(), 'listened to' UNION ALL SELECT 'temporary', pg_my_temp_schema()::text
        UNION ALL SELECT locktype, 'locked' FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'
    """

    def state(session: Connection) -> list[tuple[str, str]]:
        with session, session.cursor() as cursor:
            cursor.execute(kept)
            return sorted(cursor.fetchall())

    with closing(Pool(empty)) as pool, pytest.MonkeyPatch.context() as patched:
        session = connect(empty)
        before = state(session)
        pool._put_back(session)
        patched.setattr(database, "_pools", {empty: pool})
        assert migrate(empty) == MIGRATIONS
        assert pool._idle == [session]
        assert state(session) == before


def test_everything_of_sluice_is_in_its_own_schemas(dsn: str) -> None:
    assert oracle.ask(dsn, "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace") == []


def test_every_table_and_column_is_documented(dsn: str) -> None:
    query = """
        SELECT c.relname, a.attname FROM pg_class c
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND c.relkind = 'r'
        WHERE c.relnamespace = 'sluice'::regnamespace AND c.relkind IN ('r', 'v')
          AND c.relname NOT LIKE '%%yoyo%%' AND c.relname NOT LIKE 'iceberg%%'
          AND (col_description(c.oid, a.attnum) IS NULL AND a.attnum IS NOT NULL
               OR obj_description(c.oid, 'pg_class') IS NULL)
    """
    assert oracle.ask(dsn, query) == []


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


def test_an_old_server_is_refused(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "OLDEST_SERVER", 990000)
    with pytest.raises(SetupError, match="99 or later is needed"):
        migrate(empty)


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


def test_the_ledger_refuses_what_is_not_conserved(dsn: str) -> None:
    """The invariants are the table's own, whatever the code does."""
    oracle.ask(dsn, LEDGER)
    for refused, values in {
        "rows_conserved": (1, 0, 1, 8, 1, 0),
        "delivery_malformed_check": (1, 0, 1, 10, 0, -1),
        "delivery_commit_seq_check": (1, 0, 0, 10, 0, 0),
    }.items():
        with pytest.raises(psycopg2.errors.CheckViolation, match=refused):
            oracle.ask(dsn, INSERT, values)
    oracle.ask(dsn, INSERT, (1, 0, 1, 8, 2, 2))
    for refused, values in {
        "one_batch_one_delivery": (2, 0, 2, 10, 0, 0),
        "one_commit_one_number": (2, 1, 1, 10, 0, 0),
        "delivery_pkey": (1, 1, 2, 10, 0, 0),
    }.items():
        with pytest.raises(psycopg2.errors.UniqueViolation, match=refused):
            oracle.ask(dsn, INSERT, values)
