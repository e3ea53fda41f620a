"""Brings schema `sluice` to the newest version, beside runs that are up."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence

import psycopg2
from psycopg2 import sql

from etl.common.database import (
    TIMEOUTS,
    Cursor,
    ensure_schema,
    lift_limits,
    savepoint,
    transaction,
    wait_for_locks,
)
from etl.common.errors import Busy
from etl.common.statements import SQL_FOLDER, Statements

STATEMENTS = Statements(__name__)

MIGRATIONS = SQL_FOLDER / "migrations"
MIGRATION_LOCK = 0x51_0C_1C_E  # any constant of our own
LOCKING_SECONDS = 30  # that a migration tries to have what it changes, while runs are up
# In one try: for the first table, while nothing is held and a commit may end; for all others, less than deadlock_timeout, so
# that nobody who waits for the first meanwhile looks for a deadlock and finds it.
FIRST_LOCK_MS, OTHER_LOCKS_MS = 5000, 500
_CHANGED = re.compile(r"\b(?:TABLE|VIEW|ON|UPDATE|DELETE FROM|REFERENCES)\s+sluice\.(\w+)")


def migrate(dsn: str) -> list[str]:
    """Bring schema `sluice` to the newest version; safe to run twice and by two at once.

    Returns the names of the migrations that were applied now. One statement finds a schema up to date, and nothing is
    locked for it. Else all that are missing are applied in one transaction, whose advisory lock keeps others out: all of
    them or none. All names are qualified and nothing is left in the session, which a pooler may give to another after it.
    """
    if _is_up_to_date(dsn):
        return []
    with transaction(dsn) as cursor:
        try:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
        except psycopg2.errors.LockNotAvailable as error:
            raise Busy(
                f"Another command has been migrating the database for longer than {TIMEOUTS['lock_timeout']}",
                remedy="wait until it ends, or find in pg_locks who holds the advisory lock; then run the"
                " same command again",
            ) from error
        return _apply(cursor)


def _is_up_to_date(dsn: str) -> bool:
    """Tell whether all of our migrations are applied, and maybe later ones."""
    ours = [path.stem for path in MIGRATIONS.glob("*.sql")]
    try:
        with transaction(dsn) as cursor:
            STATEMENTS.execute(cursor, "is_up_to_date", migrations=ours, count=len(ours))
            return cursor.fetchone() == (True,)
    except psycopg2.errors.UndefinedTable:
        return False


def _apply(cursor: Cursor) -> list[str]:
    """Apply the migrations that are missing, in their order, and mark each; return their names."""
    for schema in ("sluice", "sluice_stage"):
        ensure_schema(cursor, schema)
    STATEMENTS.execute(cursor, "create_marks")
    STATEMENTS.execute(cursor, "marked")
    marked = {name for (name,) in cursor.fetchall()}
    missing = {
        path.stem: path.read_text() for path in sorted(MIGRATIONS.glob("*.sql")) if path.stem not in marked
    }
    _lock_changed(cursor, missing.values())
    # Those of a large ledger may take longer than any commit.
    lift_limits(cursor)
    for name, text in missing.items():
        cursor.execute(text)
        STATEMENTS.execute(cursor, "mark", migration=name)
    return [*missing]


def _lock_changed(cursor: Cursor, migrations: Iterable[str]) -> None:
    """Lock all that these migrations change and that is there, before they begin; raise Busy where runs are in the way.

    HAZARD: a commit locks its pipeline's row before it refers to runs, a heartbeat locks runs before pipelines. Who has
    one of the two tables and waits for the other ends in a deadlock with either.
    """
    some = {name for text in migrations for name in named(text)}
    STATEMENTS.execute(cursor, "those_there", names=list(some))
    # Each commit has a pipeline's row before anything else of the ledger but the quarantine, into which it copies while its
    # batch is staged: none is open once that table is ours.
    there = sorted((name for (name,) in cursor.fetchall()), key=lambda name: (name != "pipeline", name))
    deadline = time.monotonic() + LOCKING_SECONDS
    while not _have_locked(cursor, there):
        if time.monotonic() > deadline:
            raise Busy(
                "The ledger's tables are to be changed, and for longer than"
                f" {LOCKING_SECONDS} s others have used them all the time",
                remedy="end the runs that are up where they were started (Ctrl-C, or their task in Airflow), or find in"
                " pg_locks who else has them; then run the same command again",
            )


def named(migration: str) -> list[str]:
    """Return the tables of the ledger that a migration names as what it changes, or refers to."""
    return _CHANGED.findall(migration)


def _have_locked(cursor: Cursor, tables: Sequence[str]) -> bool:
    """Try to lock all of the tables; return False, and have none of them, where one could not be had soon."""
    patience, held_since = FIRST_LOCK_MS, 0.0
    try:
        with savepoint(cursor):
            for table in tables:
                wait_for_locks(cursor, f"{max(patience, 1)}ms")
                STATEMENTS.execute(cursor, "lock_table", table=sql.Identifier("sluice", table))
                held_since = held_since or time.monotonic()
                patience = OTHER_LOCKS_MS - int(1000 * (time.monotonic() - held_since))
    except (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected):
        return False
    return True
