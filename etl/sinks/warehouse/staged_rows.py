"""The rows that the winning tasks staged, and the checks that as many are staged and moved as the tasks reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg2 import sql

from etl.common.database import Cursor
from etl.common.errors import StagingLost
from etl.common.statements import Statements
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

    def require_staged(self, cursor: Cursor) -> None:
        """Raise StagingLost unless as many rows are staged as the tasks reported."""
        require_staged(cursor, self.staging, self.tasks, self.expected)

    def require_moved(self, moved: int) -> None:
        """Raise StagingLost unless as many rows were moved as the tasks reported."""
        require_count(self.staging, moved, self.expected)


def require_staged(cursor: Cursor, table: str, tasks: Sequence[int], expected: int) -> None:
    """Raise StagingLost unless the staging table has `expected` rows of these tasks."""
    STATEMENTS.execute(cursor, "count_staged", staging=sql.Identifier(table), tasks=list(tasks))
    counted = cursor.fetchone()
    require_count(table, counted[0] if counted else 0, expected)


def require_count(table: str, count: int, expected: int) -> None:
    """Raise StagingLost unless the rows found of a staging table are as many as expected."""
    if count != expected:
        raise StagingLost(
            f"Staging table {table} has {count} rows of the winning tasks, which reported {expected}:"
            " PostgreSQL empties unlogged tables when it crashes",
            remedy="the batch is staged again; if it happens again, see PostgreSQL's log",
        )


def names(columns: Sequence[str], *, of: str | None = None) -> sql.Composed:
    """Write columns as a list of identifiers, those `of` a table's alias if one is given."""
    prefix = () if of is None else (of,)
    return sql.SQL(", ").join(sql.Identifier(*prefix, column) for column in columns)
