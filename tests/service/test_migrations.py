"""Migrations run once, all of them or none, beside runs that are up; and the schema that they make is sound."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from etl.common import migrations
from etl.common.database import Connection, Pool, connect, ensure_schema, transaction
from etl.common.errors import Busy
from etl.common.migrations import migrate
from etl.common.statements import SQL_FOLDER
from etl.ledger import leases, pipelines
from tests.support import oracle
from tests.support.waiting import until

FOLDER = SQL_FOLDER / "migrations"
MIGRATIONS = [path.stem for path in sorted(FOLDER.glob("*.sql"))]


def newest_that_change(*tables: str) -> list[str]:
    """Return the fewest of the newest migrations that between them lock all of these tables of the ledger."""
    for first in reversed(range(len(MIGRATIONS))):
        texts = "".join((FOLDER / f"{name}.sql").read_text() for name in MIGRATIONS[first:])
        if set(tables) <= set(re.findall(r"(?:ALTER TABLE|REFERENCES) sluice\.(\w+)", texts)):
            return MIGRATIONS[first:]
    raise AssertionError(f"no migration changes {tables}")


MISSING = newest_that_change("pipeline", "run")  # of an older database
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
from etl.common import migrations

migrations.MIGRATIONS = Path(sys.argv[2])
migrations.migrate(sys.argv[1])
"""


def test_migrating_twice_changes_nothing(database: str) -> None:
    assert migrate(database) == MIGRATIONS
    assert migrate(database) == []


def test_two_that_migrate_at_once_apply_each_migration_once(database: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        applied = [name for names in pool.map(lambda _: migrate(database), range(4)) for name in names]
    assert applied == MIGRATIONS


def test_each_migration_names_all_tables_that_it_locks(database: str) -> None:
    """What it names is locked before it begins, in an order in which it meets no commit."""
    locked = """
        SELECT relname FROM pg_locks JOIN pg_class c ON c.oid = relation
        WHERE pid = pg_backend_pid()
          AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
          AND relnamespace = 'sluice'::regnamespace AND relkind IN ('r', 'v')
    """
    there = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('sluice')"
    with transaction(database) as cursor:
        for schema in ("sluice", "sluice_stage"):
            ensure_schema(cursor, schema)
    unnamed = dict[str, set[str]]()
    for name in MIGRATIONS:
        text = (FOLDER / f"{name}.sql").read_text()
        with transaction(database) as cursor:
            cursor.execute(there)
            before = {table for (table,) in cursor.fetchall()}
            cursor.execute(text)
            cursor.execute(locked)
            unnamed[name] = ({table for (table,) in cursor.fetchall()} & before) - {*migrations.named(text)}
    assert {name: tables for name, tables in unnamed.items() if tables} == {}


def test_a_schema_that_is_up_to_date_waits_for_nobody(database: str) -> None:
    migrate(database)
    with closing(psycopg2.connect(database)) as other, other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (migrations.MIGRATION_LOCK,))
        assert migrate(database) == []


def test_a_newer_schema_is_left_as_it_is(database: str) -> None:
    migrate(database)
    mark = "INSERT INTO sluice._yoyo_migration (migration_hash, migration_id) VALUES ('later', '9999.later')"
    oracle.ask(database, mark)
    assert migrate(database) == []


def test_a_schema_for_staging_that_no_backup_has_is_made_again(database: str) -> None:
    migrate(database)
    oracle.ask(database, "DROP SCHEMA sluice_stage CASCADE")
    assert migrate(database) == []
    assert oracle.ask(database, "SELECT to_regnamespace('sluice_stage') IS NOT NULL") == [(True,)]


@pytest.fixture
def older(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a database that lacks the newest migrations, with a pipeline that a run has the lease of."""
    there = MIGRATIONS[: -len(MISSING)]
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "MIGRATIONS", folder_of(tmp_path / "older", there))
        assert migrate(database) == there
    oracle.ask(database, f"{LEDGER}; UPDATE sluice.pipeline SET lease_token = '{RUN}'")
    return database


def folder_of(folder: Path, names: Sequence[str], **others: str) -> Path:
    """Make a folder of some of the migrations, and of others by their texts."""
    folder.mkdir()
    texts = {name: (FOLDER / f"{name}.sql").read_text() for name in names}
    for name, text in {**texts, **others}.items():
        (folder / f"{name}.sql").write_text(text)
    return folder


def test_an_older_schema_gets_what_it_lacks(older: str) -> None:
    assert migrate(older) == MISSING


def test_a_migration_beside_a_run_waits_for_its_commit_and_holds_up_neither_that_nor_its_heartbeats(
    older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "FIRST_LOCK_MS", 500)
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
        assert migrating.result() == MISSING
    assert oracle.ask(older, "SELECT delivery_id FROM sluice.delivery") == [(1,)]


@pytest.mark.parametrize("theirs", ["pipeline", "run"])
def test_a_migration_whose_tables_others_use_all_the_time_is_given_up(
    older: str, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    monkeypatch.setattr(migrations, "LOCKING_SECONDS", 0)
    monkeypatch.setattr(migrations, "FIRST_LOCK_MS", 100)
    with closing(connect(older)) as other, other, other.cursor() as cursor:
        cursor.execute(f"SELECT FROM sluice.{theirs}")
        with pytest.raises(Busy, match=r"The ledger's tables are to be changed") as busy:
            migrate(older)
    assert "end the runs that are up" in busy.value.remedy
    assert migrate(older) == MISSING


def test_migrations_are_applied_together_or_not_at_all(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = folder_of(tmp_path / "failing", MIGRATIONS, **{"9999.fails": "SELECT 1 / 0"})
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "MIGRATIONS", failing)
        with pytest.raises(psycopg2.errors.DivisionByZero):
            migrate(database)
    assert oracle.ask(database, "SELECT to_regnamespace('sluice'), to_regnamespace('sluice_stage')") == [
        (None, None)
    ]
    assert migrate(database) == MIGRATIONS
    assert oracle.ask(database, "SELECT count(DISTINCT xmin::text) FROM sluice._yoyo_migration") == [(1,)]


def test_a_process_that_is_killed_while_it_migrates_leaves_all_of_it_to_who_waits(
    database: str, tmp_path: Path
) -> None:
    waits = {"9999.waits": "SELECT pg_advisory_xact_lock(1)"}
    folder = folder_of(tmp_path / "waiting", MIGRATIONS, **waits)
    with ThreadPoolExecutor(1) as pool, closing(connect(database)) as other:
        with other, other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(1)")
            with subprocess.Popen([sys.executable, "-c", MIGRATE, database, str(folder)]) as killed:
                until(lambda: oracle.ask(database, IN_LINE, (1,)), "the process to wait", patience=60)
                migrating = pool.submit(migrate, database)
                lock = (migrations.MIGRATION_LOCK,)
                until(lambda: oracle.ask(database, IN_LINE, lock), "the other one to wait", patience=60)
                killed.kill()
            assert not migrating.done()
        assert migrating.result() == MIGRATIONS


def test_migrations_leave_nothing_in_their_session(database: str) -> None:
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

    with closing(Pool(database)) as pool, pytest.MonkeyPatch.context() as patched:
        session = connect(database)
        before = state(session)
        pool._put_back(session)
        patched.setattr("etl.common.database._pools", {database: pool})
        assert migrate(database) == MIGRATIONS
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
