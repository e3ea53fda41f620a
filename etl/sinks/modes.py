"""The modes of a sink: how rows come into the warehouse's table, and which deliveries' rows are in force.

A mode is one class here; whoever needs to know asks it, and nobody else tells sinks apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar, assert_never

from psycopg2 import sql

from etl.common.database import Cursor
from etl.common.errors import SetupError
from etl.common.statements import Statements
from etl.pipeline import Append, Replace, Sink, Upsert
from etl.pipeline.declaration import OutputMode
from etl.sinks.columns import SYSTEM_COLUMNS

if TYPE_CHECKING:
    from etl.sinks.warehouse.staged_rows import StagedRows

STATEMENTS = Statements(__name__)

Delivery = TypeVar("Delivery")


@dataclass(frozen=True, kw_only=True)
class Key:
    """What tells which rows are versions of one, and which of these is the newest."""

    columns: tuple[str, ...]
    newest: str

    @property
    def equality(self) -> sql.Composed:
        """Return the condition that the rows `t` and `s` of a statement have the same key."""
        columns = (sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in self.columns)
        return sql.SQL(" AND ").join(columns)


class SinkMode(ABC):
    """How a sink takes rows. What a mode doesn't say otherwise holds where every row is new."""

    output_mode: ClassVar[OutputMode]  # Spark's, in which an aggregate puts out what the sink takes
    only_newest: ClassVar[bool] = False  # each delivery is the whole table, in both sinks
    only_adds: ClassVar[bool] = False  # its merge does nothing but copy rows into the table
    merges_rows: ClassVar[bool] = False  # a statement reads staged rows, which have to be a table for that

    @property
    def key(self) -> Key | None:
        """Return the key of which the warehouse has one row, and the lake every change; None: it has all rows."""
        return None

    @property
    def named_columns(self) -> Mapping[str, Sequence[str]]:
        """Return the columns that the sink's own fields name, by field."""
        return {}

    @abstractmethod
    def merge(self, cursor: Cursor, staged: StagedRows) -> None:
        """Bring staged rows into the warehouse's table, within the caller's transaction.

        Raises StagingLost where some of them are gone, TableRefused where the table does not take them all.
        """

    def in_force(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return those of a pipeline's live deliveries, given in the order of their commits, whose rows the table has."""
        return deliveries[-1:] if self.only_newest else deliveries

    def is_in_force(self, delivery_id: int, *, newest: int | None) -> bool:
        """Tell whether the table has the rows of a live delivery, when the pipeline's newest is `newest`."""
        return not self.only_newest or delivery_id == newest

    def refuse_output(self, pipeline: str, state: Sequence[str], output_mode: str) -> None:  # noqa: B027 - most refuse nothing
        """Raise SetupError where the sink can't take what a transform with `state` puts out in this mode."""

    def refuse_replay(self, pipeline: str, deliveries: Sequence[int], *, newest: int | None) -> None:  # noqa: B027 - most refuse nothing
        """Raise SetupError where these deliveries can't be replayed, the newest of the pipeline being `newest`."""

    def refuse_withdrawal(self, pipeline: str) -> None:  # noqa: B027 - most refuse nothing
        """Raise SetupError where the table can't become again what it was before a delivery."""

    def refuse_release(self, pipeline: str, held_by: Collection[int]) -> None:  # noqa: B027 - most refuse nothing
        """Raise SetupError where no row that these deliveries hold can be released into the table."""

    def refuse_increments(self, pipeline: str) -> None:  # noqa: B027 - most refuse nothing
        """Raise SetupError where what one delivery brought is not new beside the rest."""


class AppendMode(SinkMode):
    """Every row is new."""

    output_mode = "append"
    only_adds = True

    def merge(self, cursor: Cursor, staged: StagedRows) -> None:
        staged.copy(cursor)


@dataclass(frozen=True)
class UpsertMode(SinkMode):
    """One row a key in the warehouse: the newest, then the one committed last."""

    sink: Upsert
    output_mode = "update"
    merges_rows = True

    @property
    def key(self) -> Key:
        return Key(columns=self.sink.keys, newest=self.sink.newest)

    @property
    def named_columns(self) -> Mapping[str, Sequence[str]]:
        return {"keys": self.sink.keys, "newest": [self.sink.newest]}

    def merge(self, cursor: Cursor, staged: StagedRows) -> None:
        from etl.sinks.warehouse.staged_rows import names

        key = self.key
        keys = staged.keys_staged(cursor, key.columns)
        updated = [name for name in (*staged.columns, *SYSTEM_COLUMNS) if name not in key.columns]
        assignments = (sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in updated)
        STATEMENTS.execute(
            cursor,
            "merge_upsert",
            target=staged.target,
            columns=names(staged.columns),
            staging=sql.Identifier(staged.staging),
            keys=names(key.columns),
            newest=sql.Identifier(key.newest),
            assignments=sql.SQL(", ").join(assignments),
            tasks=staged.tasks,
            stream=staged.identity.stream_id,
            batch=staged.identity.batch_id,
            delivery=staged.identity.delivery_id,
        )
        if cursor.rowcount != keys:  # the others are covered by newer rows, or something kept them out
            self._require_merged(cursor, staged)

    def _require_merged(self, cursor: Cursor, staged: StagedRows) -> None:
        """Raise TableRefused unless the table has each staged row, or one that is as new, of its key."""
        from etl.sinks.warehouse.staged_rows import refuse_missing

        key = self.key
        STATEMENTS.execute(
            cursor,
            "count_unmerged",
            target=staged.target,
            staging=sql.Identifier(staged.staging),
            newest=sql.Identifier(key.newest),
            same_key=key.equality,
            tasks=staged.tasks,
            delivery=staged.identity.delivery_id,
        )
        [(missing,)] = cursor.fetchall()
        if missing:
            refuse_missing(cursor, staged.target, missing, staged.expected)


class ReplaceMode(SinkMode):
    """Each delivery is the whole table."""

    output_mode = "complete"
    only_newest = True

    def merge(self, cursor: Cursor, staged: StagedRows) -> None:
        STATEMENTS.execute(cursor, "delete_all", target=staged.target)
        staged.copy(cursor)

    def refuse_output(self, pipeline: str, state: Sequence[str], output_mode: str) -> None:
        if state and output_mode != "complete":
            raise SetupError(
                f"Pipeline {pipeline} keeps state ({'; '.join(state)}) and outputs in {output_mode} mode, so each"
                " batch has a part of its rows; Replace() would replace the whole table with that part",
                remedy="aggregate in complete mode, or deliver with Append() or Upsert(…)",
            )

    def refuse_replay(self, pipeline: str, deliveries: Sequence[int], *, newest: int | None) -> None:
        if list(deliveries) != [newest]:
            raise SetupError(
                f"Pipeline {pipeline} delivers by replace: each batch replaced all before it, and only the"
                f" newest, delivery {newest}, is in force",
                remedy=f"`sluice replay {pipeline} --deliveries {newest}`, or land the corrected input as new files",
            )

    def refuse_withdrawal(self, pipeline: str) -> None:
        raise SetupError(
            f"Each batch of {pipeline} replaces the whole table, so the rows of before a delivery are nowhere to go back to",
            remedy="land corrected records as new files; or declare the transform as a pipeline of another name, which"
            " computes all of it anew (docs/state.md)",
        )

    def refuse_release(self, pipeline: str, held_by: Collection[int]) -> None:
        raise SetupError(
            f"Each batch of {pipeline} replaces the whole table, so no row can be released into it",
            remedy=f"fix the transform or the suite, then `sluice replay {pipeline} --deliveries {max(held_by)}`;"
            " or land the corrected input as new files",
        )

    def refuse_increments(self, pipeline: str) -> None:
        raise SetupError(
            f"Each batch of {pipeline} replaces the whole table, so no part of it is new by itself",
            remedy=f'read all of it: `etl.read(spark, "{pipeline}")`',
        )


def mode_of(sink: Sink) -> SinkMode:
    """Return the mode of a declared sink."""
    if isinstance(sink, Append):
        return AppendMode()
    if isinstance(sink, Upsert):
        return UpsertMode(sink)
    if isinstance(sink, Replace):
        return ReplaceMode()
    assert_never(sink)
