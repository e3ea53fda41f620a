"""The views under which readers see a pipeline's rows in PostgreSQL.

A view is made anew within its caller's transaction, with what people had given it: its options, owner, comments and
grants. It is locked before its table is, as readers lock them, so neither waits for the other for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg2
from psycopg2 import sql

from etl.columns import SYSTEM_COLUMNS
from etl.database import Cursor, run
from etl.declaration_checks import table_problems
from etl.ending import in_short
from etl.errors import SetupError, TableRefused
from etl.lake import CATALOG
from etl.statements import statement

Given = tuple[str | None, str]  # of which column (None: of the view), and the statement that gives it again


@dataclass(frozen=True, kw_only=True)
class Name:
    """A published name."""

    schema: str
    name: str

    @classmethod
    def of(cls, text: str) -> Name:
        """`schema.name`, or SetupError."""
        if table_problems(text):
            raise SetupError(
                f"{text!r} can't be published", remedy="name it schema.name, such as reports.departures"
            )
        schema, _, name = text.partition(".")
        return cls(schema=schema, name=name)

    @property
    def row(self) -> dict[str, str]:
        return {"schema": self.schema, "name": self.name, "catalog": CATALOG}

    @property
    def view(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@contextmanager
def made_anew(cursor: Cursor, pipeline: str, target: sql.Identifier, *, dropped: bool) -> Iterator[None]:
    """The pipeline's views follow what is done within to its table; `dropped`: they are not there meanwhile."""
    names = [
        Name(schema=schema, name=name)
        for schema, name in run(cursor, "published", "names_of", {"pipeline": pipeline}).fetchall()
    ]
    for name in names:
        with _refused(name):
            if relation_kind(cursor, name):
                cursor.execute(statement("published", "lock", view=name.view))
    given = {name: drop_view(cursor, name) if dropped else _given(cursor, name) for name in names}
    yield
    for name in names:
        make_view(cursor, name, target, given[name])


def make_view(
    cursor: Cursor, name: Name, target: sql.Identifier, given: Sequence[Given] | None = None
) -> None:
    """Show the table's own columns; `given`: what people gave the view that was dropped, None: the one that is there."""
    system = {"table": target.as_string(cursor), "system": list(SYSTEM_COLUMNS)}
    columns = [column for (column,) in run(cursor, "published", "columns", system).fetchall()]
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    create = statement("published", "create_view", view=name.view, columns=listed, target=target)
    given = _given(cursor, name) if given is None else given
    with _refused(name):
        cursor.execute("SAVEPOINT make_view")
        try:
            cursor.execute(create)
        except psycopg2.errors.InvalidTableDefinition:  # it has other columns, or of other types
            cursor.execute("ROLLBACK TO SAVEPOINT make_view")
            drop_view(cursor, name)
            cursor.execute(create)
        _give(cursor, name, [again for column, again in given if column is None or column in columns])


def _give(cursor: Cursor, name: Name, given: Sequence[str]) -> None:
    """Exactly what the view before had; to the first of its name what PostgreSQL gives by default is left."""
    if given:
        view = {"view": name.view.as_string(cursor)}
        given = [*(text for (text,) in run(cursor, "published", "revoke_defaults", view).fetchall()), *given]
    for text in given:
        cursor.execute(text)


def drop_view(cursor: Cursor, name: Name) -> list[Given]:
    """Remove the view; returns what people gave it. TableRefused where something depends on it, or it is no view."""
    given = _given(cursor, name)
    with _refused(name):
        cursor.execute(statement("published", "drop_view", view=name.view))
    return given


def relation_kind(cursor: Cursor, name: Name) -> str | None:
    """What PostgreSQL has under the name, as pg_class says it: `v` is a view. None: nothing."""
    found = run(cursor, "published", "relation_kind", {"view": name.view.as_string(cursor)}).fetchone()
    return None if found is None else str(found[0])


def _given(cursor: Cursor, name: Name) -> list[Given]:
    return run(cursor, "published", "given", {"view": name.view.as_string(cursor)}).fetchall()


@contextmanager
def _refused(name: Name) -> Iterator[None]:
    """TableRefused where PostgreSQL refuses the view what it is to become."""
    try:
        yield
    except psycopg2.errors.DependentObjectsStillExist as error:
        raise TableRefused(
            f"View {name} can't be given other columns: {(error.diag.message_detail or str(error)).strip()}",
            remedy="drop what depends on it, the same command again, and make it anew",
        ) from error
    except (
        psycopg2.errors.WrongObjectType,  # something else has its name by now
        psycopg2.errors.InvalidSchemaName,
        psycopg2.errors.InsufficientPrivilege,
    ) as error:
        raise TableRefused(
            f"View {name}, which Sluice published, can't be made anew: {in_short(error)}",
            remedy="put the schema, the view or the right back; or take the name away from its pipeline, with `sluice"
            f" publish PIPELINE --as {name} --withdraw`",
        ) from error
