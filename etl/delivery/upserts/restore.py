"""Restores rows of an upsert sink: when a replay removes a delivery, each of its keys gets the newest row that the other
deliveries brought.

The table has one row a key, the lake every change. Once the replaced rows are gone, each of their keys has the
newest of what the other live deliveries brought, exactly as if the replaced ones had never been; and over that
the replay's own rows are merged as any. A row of the table is at least as new as all that it covers. So where the
replay brings one that is as new as that, it wins, and the lake need not be asked; it is asked for the other keys
alone, and not read where there are none.

The keys that need the lake, and their changes, are staged before the lock, and computed once more under it. Whatever
adds to the changes moves the Iceberg table's pointer, so the swap notices a commit that came in between; the second
look notices a key that only now needs its changes. What is missing is staged, and the transaction tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from psycopg2 import sql

from etl.common.database import Cursor, transaction
from etl.common.statements import Statements
from etl.delivery.batch import ChangeLog
from etl.delivery.stage import StagedChanges, StageTask
from etl.sinks.warehouse.table import KEY_MARKER, Warehouse

STATEMENTS = Statements(__name__)

LISTED = 10_000  # keys; of more the log is asked by what was replaced, which Spark reads by itself


@dataclass(kw_only=True)
class UpsertRestore:
    """What is staged of the change log for one replay."""

    dsn: str = field(repr=False)
    pipeline: str
    warehouse: Warehouse
    log: ChangeLog
    task: StageTask
    brought: Sequence[int]  # the tasks that staged the replay's own rows
    replaced: tuple[int, ...]
    as_found: bool  # the table may lack rows that it should have
    deliveries: set[int] = field(default_factory=set)  # staged so far, of all keys that were asked for
    tasks: list[StagedChanges] = field(default_factory=list)

    def stage_missing_changes(self) -> None:
        """Stage what live deliveries brought and is not staged yet; again when the draft's base is known.

        What is staged of a delivery that another replay takes out of force meanwhile is not restored.
        """
        if self.as_found and not self.log.lost and not self.tasks:
            self._stage_replaced()
        with transaction(self.dsn) as cursor:
            if self.note_new_keys(cursor) and not self.log.lost:
                self.deliveries.clear()
            keys = None if self.log.lost else self._keys(cursor)
            live, files = self._missing(cursor)
        if files and (keys is None or keys.num_rows):
            self.tasks += self.log.stage(self.task, files, keys)
        self.deliveries |= live

    def _stage_replaced(self) -> None:
        """Stage the replaced rows for their keys, which the table may not tell.

        That is of no use, and not done, where nothing else could come back.
        """
        with transaction(self.dsn) as cursor:
            _, files = self._missing(cursor)
        if files:
            self.tasks += self.log.stage(self.task, self.log.replaced, None)

    def _missing(self, cursor: Cursor) -> tuple[set[int], list[str]]:
        """Return the deliveries that stay in force, and the objects of those that are not staged yet."""
        STATEMENTS.execute(cursor, "live", pipeline=self.pipeline, replaced=list(self.replaced))
        live = {number for (number,) in cursor.fetchall()}
        STATEMENTS.execute(cursor, "files", deliveries=sorted(live - self.deliveries))
        return live, [path for (path,) in cursor.fetchall()]

    def note_new_keys(self, cursor: Cursor) -> bool:
        """Note every key that needs its change log and was not asked for; return True if there are some.

        They have to be staged then; within the commit its transaction has to be tried again.
        """
        return self.warehouse.note_keys_to_restore(cursor, self.task.tables, self.brought, self.replaced) > 0

    def _keys(self, cursor: Cursor) -> pa.Table | None:
        """Read all keys that the log was asked for; None where they are too many to be listed."""
        from etl.sinks.warehouse.copy_out import (  # with pyiceberg, which the executors do without
            copy_rows,
            exact,
        )

        columns = pa.schema([self.warehouse.columns.field(name) for name in self.warehouse.keys])
        command = STATEMENTS.compose(
            "keys_to_restore",
            columns=exact(columns),
            log=sql.Identifier(self.task.tables.log or ""),
            marker=sql.Literal(KEY_MARKER),
            most=sql.Literal(LISTED + 1),
        )
        batches: list[pa.RecordBatch] = []
        copy_rows(cursor, command, columns, batches.append)
        keys = pa.Table.from_batches(batches, columns)
        return keys if keys.num_rows <= LISTED else None

    def restore(self, cursor: Cursor) -> None:
        """Fill the keys that the table lost, once the replaced rows are removed."""
        assert self.task.tables.log is not None
        self.warehouse.restore_rows(
            cursor,
            self.task.tables.log,
            [number for number, _ in self.tasks],
            expected=sum(count for _, count in self.tasks),
        )
