"""Copies staged rows into their tables while tasks still stage the rest, in the transaction that the commit ends.

Nobody sees a row of it before COMMIT. It gives way, by rolling back, to whoever waits for it and where anything is not as
expected; then the commit copies all rows itself, as it does of a batch that was tried before, or is staged in a moment.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from types import TracebackType
from typing import Self

import psycopg2

from etl.common.database import Cursor, savepoint, transaction, wait_for_locks
from etl.common.errors import Busy, SluiceError
from etl.common.statements import Statements
from etl.common.steps import Step, reached
from etl.common.wording import pluralize
from etl.delivery.stage import StageTask
from etl.ledger import pipelines
from etl.sinks.warehouse.leftovers import staging_there
from etl.sinks.warehouse.packed_rows import PackedRows
from etl.sinks.warehouse.staged_parts import StagedParts
from etl.sinks.warehouse.staged_rows import Winners
from etl.sinks.warehouse.table import Warehouse, copy_held

STATEMENTS = Statements(__name__)

log = logging.getLogger("sluice")

FIRST_LOOK = 1.0  # seconds to the first look for rows, and between two: nothing is asked for a batch that is staged by then
PAUSE = 0.5  # seconds between two looks that find nothing new
PATIENCE = "500ms"  # for a lock: less than PostgreSQL's deadlock_timeout, so that no other session is ended for this one


class GaveWay(Exception):
    """Nothing is copied ahead; the commit copies all rows."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Rows that are in their tables already, within a transaction that is still open and has the pipeline's row."""

    cursor: Cursor
    transaction: ExitStack  # commits where it is left without an error
    rows: Mapping[bool, int]  # by whether they are held
    tasks: frozenset[int]  # that staged them

    def roll_back(self) -> None:
        """End the transaction with nothing copied; a connection that is lost has done so."""
        with suppress(GaveWay, psycopg2.Error), self.transaction:
            raise GaveWay


@dataclass(kw_only=True)
class CopyAhead:
    """Copies the rows of one attempt in a thread of its own, from when it is entered until `take`."""

    task: StageTask
    warehouse: Warehouse
    _ended: Event = field(default_factory=Event)  # staging
    _wanted: bool = False  # the commit waits for the rest to be copied
    _copied: Copied | None = None
    _failed: Exception | None = None

    def __post_init__(self) -> None:
        self._thread = Thread(target=self._run, name="copy-ahead", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wanted = False
        self._join()
        if self._copied is not None:
            self._copied.roll_back()

    def take(self, winners: Winners, *, expected: Mapping[bool, int]) -> Copied | None:
        """Return what was copied, once, if it is the winners' alone and all but what their reports brought.

        `expected` are the winners' rows, by whether they are held.

        Raises QueryCanceled where somebody cancels a statement that the commit waits for.
        """
        self._wanted = True
        self._join()
        if self._failed is not None:
            raise self._failed
        copied, self._copied = self._copied, None
        if copied is None:
            return None
        known = _by_kind(winners.reported) + Counter(copied.rows)
        if copied.tasks <= {*winners.tasks} and known == Counter(expected):
            return copied
        copied.roll_back()
        return None

    def _join(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        if self._ended.wait(FIRST_LOOK):
            return
        try:
            self._copied = self._copy_all()
        except Exception as why:  # noqa: BLE001 - the commit does the same, and tells what is wrong
            # Whoever cancels a statement that the commit waits for means the commit.
            if isinstance(why, psycopg2.errors.QueryCanceled) and self._wanted:
                self._failed = why
                return
            known = isinstance(why, GaveWay | SluiceError | psycopg2.Error)
            level = logging.DEBUG if known else logging.WARNING
            log.log(level, "batch %s: the commit copies its rows: %s", self.task.batch_id, why)

    def _copy_all(self) -> Copied:
        """Copy all rows that PostgreSQL has, and lock the pipeline's row. Raises GaveWay where the commit is to do it."""
        self._wait_for_rows()
        with ExitStack() as stack:
            cursor = stack.enter_context(transaction(self.task.tables.dsn))
            # Until the commit locks the pipeline's row, which sets our own limits anew.
            wait_for_locks(cursor, PATIENCE)
            if not self.warehouse.takes_rows(cursor):
                raise GaveWay("its table is to be changed")
            rows, tasks = self._copy(cursor)
            self._lock(cursor)
            return Copied(cursor=cursor, transaction=stack.pop_all(), rows=rows, tasks=tasks)

    def _wait_for_rows(self) -> None:
        """Wait until a task has staged rows in PostgreSQL. Raises GaveWay where none does by the end."""
        while True:
            at_the_end = self._ended.is_set()  # asked first: all is staged by then
            with transaction(self.task.tables.dsn) as cursor:
                if staging_there(cursor, [self.task.tables.packed]):
                    return
            if at_the_end:
                raise GaveWay("no rows are staged")
            self._ended.wait(FIRST_LOOK)

    def _copy(self, cursor: Cursor) -> tuple[Counter[bool], frozenset[int]]:
        """Copy what tasks stage until they have ended and nothing is left; return how many rows, and whose they are."""
        rows, parts = Counter[bool](), StagedParts(staging=self.task.tables.packed)
        while True:
            at_the_end = self._ended.is_set()  # asked first: all is staged by then
            self._require_alone(cursor)
            if some := parts.read(cursor):
                self._copy_some(cursor, some)
                rows += _by_kind(some)
            elif at_the_end:
                return rows, frozenset(parts.last)
            else:
                self._ended.wait(PAUSE)

    def _copy_some(self, cursor: Cursor, parts: Sequence[PackedRows]) -> None:
        """Copy these parts. Raises GaveWay where not all of their rows are taken."""
        took = self.warehouse.copy(cursor, [part for part in parts if not part.held])
        took += copy_held(cursor, [part for part in parts if part.held])
        if took != (rows := sum(part.rows for part in parts)):
            raise GaveWay(f"their tables took {took:,} of {pluralize(rows, 'row')}")
        reached(Step.ROWS_COPIED)

    def _lock(self, cursor: Cursor) -> None:
        """Lock the pipeline's row; wait for another commit of it as long as nobody waits for this transaction."""
        while True:
            try:
                with savepoint(cursor):
                    pipelines.lock(cursor, self.task.pipeline)
            except Busy as error:
                if isinstance(error.__cause__, psycopg2.errors.QueryCanceled):
                    raise error.__cause__  # noqa: B904 - it is the cause
                self._require_alone(cursor)
            else:
                return

    def _require_alone(self, cursor: Cursor) -> None:
        """Raise GaveWay where somebody waits for this transaction, or nobody for what it copies any more."""
        if self._ended.is_set() and not self._wanted:
            raise GaveWay("the batch is not committed")
        if STATEMENTS.execute(cursor, "others_waiting").rowcount:
            raise GaveWay("another session waits for its transaction")


def _by_kind(parts: Iterable[PackedRows]) -> Counter[bool]:
    """Count the rows of some parts, by whether they are held."""
    rows = Counter[bool]()
    for part in parts:
        rows[part.held] += part.rows
    return rows
