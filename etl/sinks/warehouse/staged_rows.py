"""The rows that the winning tasks staged, and the checks that as many are staged and moved as the tasks reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NoReturn

from psycopg2 import sql

from etl.common.database import Cursor
from etl.common.errors import StagingLost, TableRefused
from etl.common.statements import Statements
from etl.common.wording import pluralize
from etl.sinks.columns import SYSTEM_COLUMNS, RowIdentity
from etl.sinks.warehouse.packed_rows import PackedRows, copy_encoded, unpacked
from etl.sinks.warehouse.staged_parts import StagedParts
from etl.sinks.warehouse.staging import StagingTables

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class Winners:
    """The tasks of an attempt whose rows count, and what their reports brought of these."""

    tables: StagingTables
    tasks: Sequence[int]
    reported: Sequence[PackedRows]
    copied: Mapping[bool, int] = field(
        default_factory=dict
    )  # rows that are in their tables already, by whether held

    def packed(self, cursor: Cursor, *, held: bool, expected: int) -> Iterator[PackedRows]:
        """Yield the packed rows, those that are not in the reports from PostgreSQL, a few parts at a time.

        Raises StagingLost at the end unless they were `expected` in number.
        """
        brought = [part for part in self.reported if part.held == held]
        yield from brought
        if left := expected - sum(part.rows for part in brought):
            staged = 0
            parts = StagedParts(staging=self.tables.packed, held=held, tasks=self.tasks)
            while some := parts.read(cursor):
                staged += sum(part.rows for part in some)
                yield from some
            require_count(self.tables.packed, staged, left)


@dataclass(frozen=True, kw_only=True)
class StagedRows:
    """The rows that the winning tasks of one delivery staged for a table."""

    target: sql.Identifier
    columns: Sequence[str]  # of the transform's output
    winners: Winners
    expected: int  # rows that they reported
    identity: RowIdentity  # that every row is given

    @property
    def staging(self) -> str:
        """Return the staging table that has them as rows."""
        assert self.winners.tables.rows is not None
        return self.winners.tables.rows

    @property
    def tasks(self) -> list[int]:
        return list(self.winners.tasks)

    def copy(self, cursor: Cursor) -> None:
        """COPY the winners' rows into the table; raise StagingLost where some are gone, TableRefused for what it refuses."""
        columns = [*self.columns, *SYSTEM_COLUMNS]
        copy_packed(cursor, self.winners, self.target, columns, expected=self.expected, held=False)

    def keys_staged(self, cursor: Cursor, keys: Sequence[str]) -> int:
        """Return how many keys are staged; raise StagingLost unless as many rows are as the tasks reported."""
        STATEMENTS.execute(
            cursor,
            "count_keys",
            staging=sql.Identifier(self.staging),
            keys=names(keys),
            tasks=self.tasks,
        )
        [(rows, different)] = cursor.fetchall()
        require_count(self.staging, rows, self.expected)
        return int(different)


def copy_packed(
    cursor: Cursor,
    winners: Winners,
    target: sql.Identifier,
    columns: Sequence[str],
    *,
    expected: int,
    held: bool,
) -> None:
    """COPY the winners' packed rows of one kind into these columns of a table, but for those that it has already.

    Raises StagingLost where some of them are gone, TableRefused where the table does not take them all.
    """
    left = expected - winners.copied.get(held, 0)
    parts = winners.packed(cursor, held=held, expected=left)
    if missing := left - copy_parts(cursor, parts, target, columns):
        refuse_missing(cursor, target, missing, expected)


def copy_parts(
    cursor: Cursor, parts: Iterable[PackedRows], target: sql.Identifier, columns: Sequence[str]
) -> int:
    """COPY packed rows into these columns of a table; return how many it took."""
    into = sql.SQL("{} ({})").format(target, names(columns))
    with closing(unpacked(parts)) as encoded:  # an error's traceback would keep its thread
        return sum(copy_encoded(cursor, into, one) for one in encoded)


def refuse_missing(cursor: Cursor, target: sql.Identifier, missing: int, expected: int) -> NoReturn:
    """Raise TableRefused: the table does not have rows that were moved into it, though PostgreSQL named no error."""
    raise TableRefused(
        f"Table {target.as_string(cursor)} did not take {missing:,} of {pluralize(expected, 'row')}, and PostgreSQL"
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
