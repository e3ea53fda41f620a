"""The PostgreSQL sink: the pipeline's table, its staging tables, and the merge of staged rows into it.

A merge adds exactly the rows that the winning tasks staged, within the caller's transaction, or the
transaction fails.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg2
import pyarrow as pa
from psycopg2 import sql

from etl.common.database import Cursor, ensure_schema, lock_schemas
from etl.common.errors import TableRefused
from etl.common.outcome import in_short
from etl.common.statements import Statements
from etl.sinks.columns import IDENTITY, SYSTEM_COLUMNS, RowIdentity
from etl.sinks.evolution import SchemaDifference, difference
from etl.sinks.modes import Key, SinkMode
from etl.sinks.warehouse import views
from etl.sinks.warehouse.obstacles import NOTHING, Look, look_at, refusing
from etl.sinks.warehouse.packed_rows import PackedRows
from etl.sinks.warehouse.staged_rows import (
    StagedRows,
    Winners,
    copy_packed,
    copy_parts,
    names,
    require_staged,
)
from etl.sinks.warehouse.staging import QUARANTINE_COLUMNS, StagingTables

STATEMENTS = Statements(__name__)

_TYPES = {
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp without time zone",
    pa.timestamp("us", tz="UTC"): "timestamp with time zone",
}


def common_kind(text: str) -> pa.DataType | str:
    """Return the common type that PostgreSQL calls `text`; `text` itself where there is none."""
    if match := re.fullmatch(r"numeric\((\d+),(-?\d+)\)", text):
        return pa.decimal128(int(match[1]), int(match[2])) if int(match[1]) <= 38 else text
    return next((kind for kind, name in _TYPES.items() if name == text), text)


def postgres_type(kind: pa.DataType) -> str:
    """Return the PostgreSQL type of a common type, as format_type() writes it."""
    if pa.types.is_decimal128(kind):
        return f"numeric({kind.precision},{kind.scale})"
    return _TYPES[kind]


_QUARANTINE = sql.Identifier("sluice", "quarantine")
_HELD_COLUMNS = (*QUARANTINE_COLUMNS, "stream_id", "batch_id", "delivery_id", "pipeline")
KEY_MARKER = -1  # in the place of a task's number: a key of which the log is asked


@dataclass(frozen=True, kw_only=True)
class Warehouse:
    """A pipeline's table in PostgreSQL."""

    pipeline: str
    table_schema: str
    table_name: str
    columns: pa.Schema  # the transform's output in the common types
    mode: SinkMode

    @property
    def target(self) -> sql.Identifier:
        return sql.Identifier(self.table_schema, self.table_name)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns of which no row may lack one; none unless the table has one row a key."""
        return self.mode.key.columns if self.mode.key else ()

    @property
    def _key(self) -> Key:
        assert self.mode.key is not None
        return self.mode.key

    @property
    def _key_index(self) -> str:
        return self._named("key")

    def _named(self, what: str) -> str:
        """Name an index: no other table of the schema has the name, and PostgreSQL does not cut it (63 bytes)."""
        table = self.table_name
        if len(table.encode()) > 48:
            table = f"{table.encode()[:39].decode(errors='ignore')}_{zlib.crc32(table.encode()):08x}"
        return f"{table}_sluice_{what}"

    def lacks(self, cursor: Cursor) -> list[str] | None:
        """Return the columns that the table is to gain; None where it is not there."""
        different = self.difference(cursor)
        return None if different is None else list(different.added)

    def difference(self, cursor: Cursor) -> SchemaDifference | None:
        """Return how the table differs from this pipeline's output; None where it is not there."""
        if not self._there(cursor, self.table_name):
            return None
        return self._difference(column_types(cursor, self.target.as_string(cursor)))

    def open(self, cursor: Cursor) -> None:
        """Create the table where it does not exist; raise TableRefused for one that a merge could fail on."""
        ensure_schema(cursor, self.table_schema)
        columns = _definitions(self.columns)
        if not self._there(cursor, self.table_name):
            lock_schemas(cursor)
        STATEMENTS.execute(cursor, "create_table", target=self.target, columns=columns)
        keyed = self._refuse(cursor).keyed
        self._index_deliveries(cursor)
        if self.keys and not keyed:
            self._index_keys(cursor)

    def _index_deliveries(self, cursor: Cursor) -> None:
        """Create the index of the deliveries where it is missing."""
        name = self._named("delivery")
        if self._lacks_index(cursor, name):
            STATEMENTS.execute(
                cursor, "create_delivery_index", index=sql.Identifier(name), target=self.target
            )

    def _index_keys(self, cursor: Cursor) -> None:
        """Create the unique index of the keys where it is missing; raise TableRefused where the table can't have it."""
        if not self._lacks_index(cursor, self._key_index):
            if self._look(cursor).keyed:  # another run has made it meanwhile
                return
            there = sql.Identifier(self.table_schema, self._key_index).as_string(cursor)
            raise TableRefused(
                f"{there} is no valid unique index of table {self.target.as_string(cursor)}, and pipeline {self.pipeline}"
                " needs one of that name for its keys",
                remedy=f"`DROP INDEX {there}`, or rename what has this name; then run again, which makes the index anew",
            )
        index = sql.Identifier(self._key_index)
        try:
            STATEMENTS.execute(
                cursor, "create_key_index", index=index, target=self.target, keys=names(self.keys)
            )
        except (
            psycopg2.errors.UniqueViolation,  # a key is there twice
            psycopg2.errors.FeatureNotSupported,  # partitioned by a column that is no key
            psycopg2.errors.ProgramLimitExceeded,  # a key is too long for an index
        ) as error:
            raise TableRefused(
                f"Table {self.target.as_string(cursor)} can't have a unique index of the keys"
                f" {', '.join(self.keys)} of pipeline {self.pipeline}: {in_short(error)}",
                remedy="remove rows with the same key, or with a key that is too long, from the table; make"
                " the columns that it is partitioned by keys of the sink; or name another table in the sink",
            ) from error

    def _lacks_index(self, cursor: Cursor, name: str) -> bool:
        """Tell whether an index is missing, and lock out others who would make it.

        It looks first: IF NOT EXISTS would wait for all who write to the table.
        """
        if self._there(cursor, name):
            return False
        lock_schemas(cursor)
        return True

    def _there(self, cursor: Cursor, name: str) -> bool:
        """Tell whether the schema has a table or an index of this name."""
        whole = sql.Identifier(self.table_schema, name).as_string(cursor)
        return STATEMENTS.execute(cursor, "is_there", name=whole).fetchone() == (True,)

    def _refuse(self, cursor: Cursor) -> Look:
        """Return what the table has; raise TableRefused for one that a merge could fail on."""
        name, seen = self.target.as_string(cursor), self._look(cursor)
        if problems := [*self._other_columns(seen), *_obstacles(seen)]:
            raise TableRefused(
                f"Table {name} does not fit pipeline {self.pipeline}: " + "; ".join(problems),
                remedy="change the transform's output or the table (what a delivery could fail on belongs on a table"
                " of your own, filled from this one), or name another table in the sink"
                f"{self._of_publication(cursor, seen)}",
            )
        return seen

    def _of_publication(self, cursor: Cursor, seen: Look) -> str:
        """Return what else helps against a publication; nothing where none is in the way."""
        if not any(one.startswith("publication ") for one in seen.obstacles):
            return ""
        table = self.target.as_string(cursor)
        return f"; a publication needs `ALTER TABLE {table} REPLICA IDENTITY FULL`, on each partition too"

    def _look(self, cursor: Cursor, *, removes: bool = False, lock: bool = False) -> Look:
        return look_at(
            cursor,
            self.target,
            key_index=sql.Identifier(self.table_schema, self._key_index).as_string(cursor),
            keys=self.keys,
            updates=bool(self.keys),
            removes=removes or self.mode.only_newest,
            lock=lock,
        )

    def _other_columns(self, seen: Look) -> list[str]:
        different = self._difference(seen.columns)
        missing = [column for column in (*SYSTEM_COLUMNS, *self.keys) if column in different.added]
        return [*different.others, *(f"{column} is missing, the pipeline delivers it" for column in missing)]

    def _difference(self, columns: Mapping[str, str]) -> SchemaDifference:
        """Return how a table of these columns differs from this pipeline's."""
        present = {column: common_kind(kind) for column, kind in columns.items()}
        wanted = {field.name: field.type for field in (*self.columns, *IDENTITY)}
        return difference(present, wanted | {"_stream_id": "uuid"}, postgres_type)

    def require_removable(self, cursor: Cursor) -> None:
        """Raise TableRefused where rows can't be taken out of the table, or not without a loss to others.

        Call it before anything is staged that replaces rows.
        """
        seen = self._look(cursor, removes=True)
        if seen.obstacles:
            raise TableRefused(
                f"Rows of pipeline {self.pipeline} can't be replaced in table {self.target.as_string(cursor)}:"
                f" {'; '.join(_obstacles(seen))}",
                remedy="take it off for as long as the replay takes, or for good; then run the same command again",
            )

    def takes_rows(self, cursor: Cursor) -> bool:
        """Tell whether the table takes rows as it is, and lock it: nobody else changes it until the transaction ends."""
        seen = self._look(cursor, lock=True)
        return not (seen.obstacles or self._difference(seen.columns))

    def copy(self, cursor: Cursor, parts: Iterable[PackedRows]) -> int:
        """COPY delivered rows into the table as it is; return how many it took."""
        return copy_parts(cursor, parts, self.target, [*self.columns.names, *SYSTEM_COLUMNS])

    @contextmanager
    def changed(self, cursor: Cursor, *, removes: bool) -> Iterator[SchemaDifference]:
        """Add and widen columns within the caller's transaction, then let it change rows; nobody else changes the table.

        Yields what was added and widened.

        Raises TableRefused where the table no longer fits, or where PostgreSQL refuses the rows. `removes`: some leave.
        """
        seen = self._look(cursor, removes=removes, lock=True)
        different = self._evolve(cursor, seen)
        with refusing(self.target.as_string(cursor), self.pipeline, seen):
            yield different

    def _evolve(self, cursor: Cursor, seen: Look) -> SchemaDifference:
        different = self._difference(seen.columns)
        problems = [*different.others, *_obstacles(seen)]
        if self.keys and not seen.keyed:
            problems.append(f"its unique index {self._key_index} is gone or is not valid")
        if problems:
            raise TableRefused(
                f"Table {self.target.as_string(cursor)} no longer fits pipeline {self.pipeline}, and nothing of this"
                f" batch was delivered: {'; '.join(problems)}",
                remedy="find out who changed it while this batch was written, and take it off; then run again"
                f"{' (an index of the keys that is gone the run makes anew)' if self.keys else ''}"
                f"{self._of_publication(cursor, seen)}",
            )
        if not (different.added or different.widened):
            return different
        with views.made_anew(cursor, self.pipeline, self.target, dropped=bool(different.widened)):
            for column in different.added:
                self._change(cursor, column, widened=False)
            for column in different.widened:
                self._change(cursor, column, widened=True)
        return different

    def _change(self, cursor: Cursor, column: str, *, widened: bool) -> None:
        """Widen a column of the table, or add it, or raise TableRefused."""
        kind = sql.SQL(postgres_type(self.columns.field(column).type))
        name = sql.Identifier(column)
        try:
            if widened:
                STATEMENTS.execute(cursor, "widen_column", target=self.target, column=name, kind=kind)
            else:
                STATEMENTS.execute(cursor, "add_column", target=self.target, column=name, kind=kind)
        except psycopg2.errors.TooManyColumns as error:  # those that were dropped count
            raise TableRefused(
                f"Table {self.target.as_string(cursor)} can't have column {column}: {in_short(error)}, and those that"
                " were dropped count",
                remedy="copy the table into a new one of its name, which has had no other columns; then run again",
            ) from error
        except psycopg2.errors.FeatureNotSupported as error:  # a view or a rule reads the column
            raise TableRefused(
                f"Column {column} of {self.target.as_string(cursor)} can't become {kind.string}: {in_short(error)}",
                remedy="drop what depends on it, run again, and create it again",
            ) from error

    def create_staging(self, cursor: Cursor, tables: StagingTables) -> None:
        """Create those of an attempt's staging tables that are there from its beginning."""
        columns = _definitions(self.columns, self._collations(cursor))
        if tables.rows is not None:
            staging = sql.Identifier(tables.rows)
            STATEMENTS.execute(cursor, "create_row_staging", staging=staging, columns=columns)
        if tables.log is not None:
            staging = sql.Identifier(tables.log)
            STATEMENTS.execute(cursor, "create_log_staging", staging=staging, columns=columns)

    def _collations(self, cursor: Cursor) -> dict[str, sql.Identifier]:
        """Return the collations that columns of the table have of their own; none unless it has one row a key.

        Staged rows are then to be compared as the table's are.
        """
        if not self.keys:
            return {}
        STATEMENTS.execute(cursor, "collations", table=self.target.as_string(cursor))
        return {column: sql.Identifier(schema, name) for column, schema, name in cursor.fetchall()}

    def merge(self, cursor: Cursor, winners: Winners, *, expected: int, identity: RowIdentity) -> None:
        """Move the `expected` rows that the winners staged into the table, or raise StagingLost.

        Every row has its `identity` then.
        """
        staged = StagedRows(
            target=self.target,
            columns=self.columns.names,
            winners=winners,
            expected=expected,
            identity=identity,
        )
        self.mode.merge(cursor, staged)

    def note_keys_to_restore(
        self, cursor: Cursor, tables: StagingTables, tasks: Sequence[int], replaced: Sequence[int]
    ) -> int:
        """Note keys that need the change log once the rows of `replaced` are gone; return how many are new.

        These are keys whose row none of the rows that the `tasks` staged is sure to win over all it had
        covered; and those of `replaced` rows in the log's staging table, where the table is not taken to be
        right.
        """
        key = self._key
        # A replay may bring the very column, which the table then gains with its commit.
        there = key.newest not in (self.lacks(cursor) or ())
        covered = sql.SQL("t.{0} <= s.{0}").format(sql.Identifier(key.newest))
        STATEMENTS.execute(
            cursor,
            "note_keys_to_restore",
            target=self.target,
            keys=names(key.columns),
            same_key=self._key.equality,
            whole=sql.SQL(" AND ").join(
                sql.SQL("{} IS NOT NULL").format(sql.Identifier(key)) for key in self.keys
            ),
            covered=covered if there else sql.SQL("false"),
            staging=sql.Identifier(tables.rows or ""),
            log=sql.Identifier(tables.log or ""),
            marker=sql.Literal(KEY_MARKER),
            tasks=list(tasks),
            replaced=list(replaced),
        )
        return cursor.rowcount

    def restore_rows(self, cursor: Cursor, log: str, tasks: Sequence[int], *, expected: int) -> None:
        """Give each key that an upsert table lacks the newest of its staged changes, or raise StagingLost."""
        require_staged(cursor, log, tasks, expected)
        STATEMENTS.execute(
            cursor,
            "restore_rows",
            target=self.target,
            columns=names(self.columns.names),
            staged_columns=names(self.columns.names, of="s"),
            staged_keys=names(self.keys, of="s"),
            same_key=self._key.equality,
            newest=sql.Identifier(self._key.newest),
            staging=sql.Identifier(log),
            tasks=list(tasks),
        )


def _obstacles(seen: Look) -> list[str]:
    """Say what could make a merge fail or change its rows."""
    return [f"it has {obstacle}" for obstacle in seen.obstacles]


def column_types(cursor: Cursor, table: str) -> dict[str, str]:
    """Return the type of each column of a table, in their order, as format_type() writes it."""
    return dict(STATEMENTS.execute(cursor, "table_columns", table=table).fetchall())


def hold(cursor: Cursor, winners: Winners, *, expected: int, pipeline: str) -> None:
    """Move the `expected` bad rows that the winners staged into sluice.quarantine, or raise StagingLost.

    Raises TableRefused for what others have put on that table.
    """
    with refusing("sluice.quarantine", pipeline, NOTHING):
        copy_packed(cursor, winners, _QUARANTINE, _HELD_COLUMNS, expected=expected, held=True)


def copy_held(cursor: Cursor, parts: Iterable[PackedRows]) -> int:
    """COPY held rows into sluice.quarantine; return how many it took."""
    return copy_parts(cursor, parts, _QUARANTINE, _HELD_COLUMNS)


def _definitions(columns: pa.Schema, collations: Mapping[str, sql.Identifier] = {}) -> sql.Composed:
    def definition(column: pa.Field) -> sql.Composed:
        kind = sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(postgres_type(column.type)))
        return kind + sql.SQL(" COLLATE ") + collations[column.name] if column.name in collations else kind

    return sql.SQL(", ").join(definition(column) for column in columns)
