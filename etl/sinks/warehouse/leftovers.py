"""Drops the staging tables of attempts that can't commit any more; light to import, for each run asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import psycopg2
from psycopg2 import sql

from etl.common.database import Cursor, savepoint, transaction, wait_for_locks
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)


def staging_left(cursor: Cursor, pipeline: str) -> list[str]:
    """Return the staging tables of the pipeline's attempts that can't commit any more."""
    return [name for (name,) in STATEMENTS.execute(cursor, "staging_left", pipeline=pipeline).fetchall()]


def drop_staging_left(dsn: str, tables: Sequence[str]) -> list[str]:
    """Drop these staging tables, each in its own transaction; return those that a zombie still writes to."""
    busy = []
    for table in tables:
        try:
            with transaction(dsn) as cursor:
                wait_for_locks(cursor, "500ms")
                STATEMENTS.execute(cursor, "drop_staging", staging=sql.Identifier(table))
        except psycopg2.errors.LockNotAvailable:
            busy.append(table)
    return busy


def staging_there(cursor: Cursor, tables: Sequence[str]) -> list[str]:
    """Return those of these staging tables that are there."""
    return [name for (name,) in STATEMENTS.execute(cursor, "staging_there", tables=list(tables)).fetchall()]


def drop_idle_staging(cursor: Cursor, tables: Sequence[str]) -> None:
    """Drop those of a closed attempt's staging tables that are there, without waiting.

    One that a losing task still writes to is left to the next run.
    """
    for table in staging_there(cursor, tables):
        staging = sql.Identifier(table)
        with suppress(psycopg2.errors.LockNotAvailable, psycopg2.errors.UndefinedTable), savepoint(cursor):
            STATEMENTS.execute(cursor, "lock_staging", staging=staging)
            STATEMENTS.execute(cursor, "drop_staging", staging=staging)
