"""Looks at what others put on a pipeline's table, and says what PostgreSQL refused of a merge because of it.

What could make a merge fail, or change or lose rows, is looked for when the table is opened, and in each commit once
more, under a lock that keeps more of it off. What no look can tell, such as whether an index can take a value,
PostgreSQL says when rows are merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg2
from psycopg2 import errorcodes, sql

from etl.common.database import Cursor
from etl.common.errors import TableRefused
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)

# By the class of an SQLSTATE: what connections, transactions, resources and people end a statement with. All else comes of
# values, constraints, functions, which may raise any class of their own, and the table's own state.
_OF_NO_TABLE = ("08", "0B", "25", "26", "28", "2D", "34", "3B", "3D", "40", "53", "55", "57", "58", "F0")
_OF_NO_COMPUTATION = ("0A", "21", "23", "44", "54", "HV")


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a table and its partitions are and have."""

    columns: Mapping[str, str]  # of the table, and their types as format_type() writes them
    obstacles: Sequence[str]  # what could make a merge fail, or change or lose rows
    indexes: Sequence[str]  # that a value may be too long for
    computing: Sequence[str]  # those that compute something of each row
    keyed: bool  # it has the index of its keys


def look_at(
    cursor: Cursor,
    target: sql.Identifier,
    *,
    key_index: str,
    keys: Sequence[str],
    updates: bool,
    removes: bool,
    lock: bool = False,
) -> Look:
    """Return what the table and its partitions have.

    `updates`, `removes`: what a merge does to rows that are there. `lock` keeps others, until the transaction ends, from
    putting more on it. Raises TableRefused where the table that is to be locked is not there.
    """
    try:
        STATEMENTS.execute(
            cursor,
            "look",
            lock=STATEMENTS.compose("lock", target=target) if lock else sql.SQL(""),
            table=target.as_string(cursor),
            key_index=key_index,
            keys=list(keys),
            updates=updates,
            removes=removes,
        )
    except (psycopg2.errors.UndefinedTable, psycopg2.errors.InvalidSchemaName) as error:
        raise TableRefused(
            f"Table {target.as_string(cursor)} is gone: somebody dropped or renamed it after this run had begun",
            remedy="put it back under its name, then run again; if it can't be put back, the next run says how to fill it",
        ) from error
    found = cursor.fetchall()
    return Look(
        columns={name: more for what, name, more in found if what == "column"},
        obstacles=[_placed(name, more) for what, name, more in found if what == "obstacle"],
        indexes=[_placed(name, more) for what, name, more in found if what in ("index", "computes")],
        computing=[_placed(name, more) for what, name, more in found if what == "computes"],
        keyed=any(what == "keyed" for what, _, _ in found),
    )


NOTHING = Look(columns={}, obstacles=(), indexes=(), computing=(), keyed=False)


def _placed(name: str, partition: str | None) -> str:
    return name if partition is None else f"{name} on its partition {partition}"


@contextmanager
def refusing(table: str, pipeline: str, seen: Look) -> Iterator[None]:
    """Raise TableRefused, with what to do, where PostgreSQL refuses what is done to the rows of the table within.

    The indexes that may have failed for a value are named, since PostgreSQL does not always. Any other error goes on as
    it is.
    """
    try:
        yield
    except psycopg2.Error as error:
        if not _is_of_table(error):
            raise
        raise TableRefused(
            f"Table {table} can't take what pipeline {pipeline} delivers, so nothing of it was delivered:"
            f" {_told(error)}{_may_be(error, seen)}",
            remedy=_way_out(error, table),
        ) from error


def _may_be(error: psycopg2.Error, seen: Look) -> str:
    """Name the indexes of which one may have failed."""
    kind = (error.pgcode or "")[:2]
    which = seen.indexes if kind == "54" else () if kind in _OF_NO_COMPUTATION else seen.computing
    return f". What may have failed for a value: {', '.join(which)}" if which else ""


def _is_of_table(error: psycopg2.Error) -> bool:
    code = error.pgcode or ""
    if code == errorcodes.INSUFFICIENT_PRIVILEGE or "sluice_stage" in str(error):  # a zombie's are gone
        return False
    if code == errorcodes.PROGRAM_LIMIT_EXCEEDED and "row is too big" in str(error):  # for any table
        return False
    of_something = bool(code) and code[:2] not in _OF_NO_TABLE
    return of_something or code == errorcodes.OBJECT_NOT_IN_PREREQUISITE_STATE


def _told(error: psycopg2.Error) -> str:
    """Say what PostgreSQL says, without the values of a row that breaks a constraint: they may be anything."""
    diag = error.diag
    of_row = error.pgcode == errorcodes.NOT_NULL_VIOLATION or (
        error.pgcode == errorcodes.CHECK_VIOLATION
        and diag.constraint_name  # else: the key of a missing partition
    )
    # not the number of a row within a part of the rows, which nobody else sees
    lines = (line for line in (diag.context or "").splitlines() if not line.startswith("COPY "))
    parts = [diag.message_primary, None if of_row else diag.message_detail, next(lines, None)]
    return "; ".join(" ".join(part.split()).rstrip(".") for part in parts if part) or str(error).strip()


def _way_out(error: psycopg2.Error, table: str) -> str:
    if error.pgcode == errorcodes.CHECK_VIOLATION and not error.diag.constraint_name:
        return (
            "create the partition that such rows belong to, or a DEFAULT one; then run the same command again. If the row is"
            " wrong, let a rule of the suite hold it"
        )
    if error.pgcode == errorcodes.INVALID_COLUMN_REFERENCE:
        return (
            f"let the publication have all columns and rows of {table}: `ALTER PUBLICATION … DROP TABLE {table}`, then"
            f" `ALTER PUBLICATION … ADD TABLE {table}` without a list of columns or a condition; or leave it out; then run"
            " the same command again"
        )
    if error.pgcode == errorcodes.OBJECT_NOT_IN_PREREQUISITE_STATE:
        return (
            f"`ALTER TABLE {table} REPLICA IDENTITY FULL`, on each partition too, or take the table out of the publication;"
            " then run the same command again"
        )
    if (error.pgcode or "")[:2] == "P0":
        return (
            "take off the trigger, or the index, that calls this function, or let it raise nothing (who must know of rows"
            " reads the table after the commit); then run again"
        )
    if (error.pgcode or "")[:2] == "23":
        return "take the constraint off (it belongs on a table of your own, filled from this one); then run again"
    return "drop the index, or make one that takes every value (of md5(column), for example); then run again"
