"""The views under which readers see a pipeline's rows in PostgreSQL.

A view is created again within its caller's transaction, with what people had given it: its options, owner, comments and
grants. All are locked before their table is, as readers lock them, so neither waits for the other for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg2
from psycopg2 import sql

from etl.common.database import Cursor, savepoint
from etl.common.errors import SetupError, TableRefused
from etl.common.outcome import in_short
from etl.common.statements import Statements
from etl.pipeline.checks import table_problems
from etl.sinks.columns import SYSTEM_COLUMNS

STATEMENTS = Statements(__name__)

# Of which column (None: of the view), the statement that gives it again, and whether CREATE OR REPLACE takes it away.
Given = tuple[str | None, str, bool]


@dataclass(frozen=True, kw_only=True)
class Name:
    """A published name."""

    schema: str
    name: str

    @classmethod
    def of(cls, text: str) -> Name:
        """Parse `schema.name`, or raise SetupError."""
        if table_problems(text):
            raise SetupError(
                f"{text!r} can't be published", remedy="name it schema.name, such as reports.departures"
            )
        schema, _, name = text.partition(".")
        return cls(schema=schema, name=name)

    @property
    def view(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@contextmanager
def made_anew(cursor: Cursor, pipeline: str, target: sql.Identifier, *, dropped: bool) -> Iterator[None]:
    """Make the pipeline's views follow what is done to its table within; `dropped`: drop them meanwhile.

    Raises TableRefused, with the way out, where one of them can't be created again.
    """
    names = [
        Name(schema=schema, name=name)
        for schema, name in STATEMENTS.execute(cursor, "names_of", pipeline=pipeline).fetchall()
    ]
    for name in names:
        with way_out(name):
            _lock(cursor, name)
    given: dict[Name, Sequence[Given] | None] = dict.fromkeys(names)
    if dropped:
        for name in names:
            with way_out(name):
                given[name] = drop_view(cursor, name)
    yield
    for name in names:
        with way_out(name):
            make_view(cursor, name, target, given[name])


def make_view(
    cursor: Cursor, name: Name, target: sql.Identifier, given: Sequence[Given] | None = None
) -> None:
    """Make the view show the table's own columns.

    `given`: what people gave the view that was dropped, None: it may be there. Raises TableRefused where
    something depends on a view that has to be dropped for it.
    """
    STATEMENTS.execute(cursor, "columns", table=target.as_string(cursor), system=list(SYSTEM_COLUMNS))
    columns = [column for (column,) in cursor.fetchall()]
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    create = STATEMENTS.compose("create_view", view=name.view, columns=listed, target=target)
    if given is None:
        given = _given(cursor, name)
        try:
            with savepoint(cursor):
                cursor.execute(create)
        except psycopg2.errors.InvalidTableDefinition:  # it has other columns, or of other types
            drop_view(cursor, name)
        else:
            _execute(cursor, [statement for _, statement, reset in given if reset])
            return
    cursor.execute(create)
    if given:  # to the first of its name what PostgreSQL gives by default is left
        STATEMENTS.execute(cursor, "revoke_defaults", view=name.view.as_string(cursor))
        _execute(cursor, [text for (text,) in cursor.fetchall()])
    _execute(cursor, [statement for column, statement, _ in given if column is None or column in columns])


def drop_view(cursor: Cursor, name: Name) -> list[Given]:
    """Remove the view and return what people gave it. Raises TableRefused where something depends on it."""
    given = _given(cursor, name)
    try:
        STATEMENTS.execute(cursor, "drop_view", view=name.view)
    except psycopg2.errors.DependentObjectsStillExist as error:
        raise TableRefused(
            f"View {name} can't be given other columns: {(error.diag.message_detail or str(error)).strip()}",
            remedy="drop what depends on it, run the same command again, and create it again",
        ) from error
    return given


def relation_kind(cursor: Cursor, name: Name) -> str | None:
    """Return what PostgreSQL has under the name, as pg_class says it: `v` is a view. None: nothing."""
    record = STATEMENTS.execute(cursor, "relation_kind", view=name.view.as_string(cursor)).fetchone()
    return None if record is None else str(record[0])


@contextmanager
def way_out(name: Name) -> Iterator[None]:
    """Raise TableRefused, with what to do, where PostgreSQL refuses to change a published view."""
    try:
        yield
    except (
        psycopg2.errors.WrongObjectType,  # something else has its name by now
        psycopg2.errors.InvalidSchemaName,
        psycopg2.errors.InsufficientPrivilege,
    ) as error:
        raise TableRefused(
            f"View {name}, which Sluice published, can't be changed: {in_short(error)}",
            remedy="put the schema, the view or the right back, or drop the view as its owner; or take the name away, with"
            f" `sluice publish PIPELINE --as {name} --withdraw`",
        ) from error


def _lock(cursor: Cursor, name: Name) -> None:
    """Keep readers out of the view, and out of that alone: LOCK TABLE would take its table, too."""
    STATEMENTS.execute(cursor, "lock", view=name.view.as_string(cursor))
    _execute(cursor, [text for (text,) in cursor.fetchall()])


def _given(cursor: Cursor, name: Name) -> list[Given]:
    return STATEMENTS.execute(cursor, "given", view=name.view.as_string(cursor)).fetchall()


def _execute(cursor: Cursor, texts: Iterable[str]) -> None:
    for text in texts:
        cursor.execute(text)
