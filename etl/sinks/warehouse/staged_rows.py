"""The rows that the winning tasks staged, and the checks that as many are staged and moved as the tasks reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from psycopg2 import sql

from etl.common.database import Cursor
from etl.common.errors import StagingLost, TableRefused
from etl.common.statements import Statements
from etl.common.wording import pluralize
from etl.sinks.columns import RowIdentity

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class StagedRows:
    """The rows that the winning tasks of one delivery staged for a table."""

    target: sql.Identifier
    columns: Sequence[str]  # of the transform's output
    staging: str  # the staging table
    tasks: Sequence[int]  # the winning ones
    expected: int  # rows that they reported
    identity: RowIdentity  # that every row is given

    def keys_staged(self, cursor: Cursor, keys: Sequence[str]) -> int:
        """Return how many keys are staged; raise StagingLost unless as many rows are as the tasks reported."""
        STATEMENTS.execute(
            cursor,
            "count_keys",
            staging=sql.Identifier(self.staging),
            keys=names(keys),
            tasks=list(self.tasks),
        )
        [(rows, different)] = cursor.fetchall()
        require_count(self.staging, rows, self.expected)
        return int(different)

    def require_moved(self, cursor: Cursor, moved: int) -> None:
        """Raise StagingLost where rows are not staged that the tasks reported, TableRefused where they were not moved."""
        if moved != self.expected:
            require_staged(cursor, self.staging, self.tasks, self.expected)
            self.refuse_missing(cursor, self.expected - moved)

    def refuse_missing(self, cursor: Cursor, missing: int) -> NoReturn:
        """Raise TableRefused: the table does not have rows that were moved into it, though PostgreSQL named no error."""
        raise TableRefused(
            f"Table {self.target.as_string(cursor)} did not take {missing:,} of"
            f" {pluralize(self.expected, 'row')}, and PostgreSQL"
            " named no error: something on it, or on one of its partitions, keeps rows out. Nothing was delivered",
            remedy="find what does (a trigger, most likely: `\\d+` in psql, of each partition, too) and take it off; then"
            " run again",
        )


def require_staged(cursor: Cursor, table: str, tasks: Sequence[int], expected: int) -> None:
    """Raise StagingLost unless the staging table has `expected` rows of these tasks."""
    STATEMENTS.execute(cursor, "count_staged", staging=sql.Identifier(table), tasks=list(tasks))
    counted = cursor.fetchone()
    require_count(table, counted[0] if counted else 0, expected)


def require_count(table: str, count: int, expected: int) -> None:
    """Raise StagingLost unless the rows found of a staging table are as many as expected."""
    if count != expected:
        raise StagingLost(
            f"Staging table {table} has {pluralize(count, 'row')} of the winning tasks, which reported {expected}:"
            " PostgreSQL empties unlogged tables when it crashes",
            remedy="the batch is staged again; if it happens again, see PostgreSQL's log",
        )


def names(columns: Sequence[str], *, of: str | None = None) -> sql.Composed:
    """Write columns as a list of identifiers, those `of` a table's alias if one is given."""
    prefix = () if of is None else (of,)
    return sql.SQL(", ").join(sql.Identifier(*prefix, column) for column in columns)
