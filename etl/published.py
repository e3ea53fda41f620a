"""Names of a pipeline's table for readers: a view in PostgreSQL and a table of the catalog, which show the same rows.

A name is given to another pipeline by one transaction, so readers of either sink see all of the one or all of the
other. Every commit of the pipeline moves the catalog's name along with the table's own (`swap_pointer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg2
from psycopg2 import sql

from etl import ledger
from etl.columns import SYSTEM_COLUMNS
from etl.database import TIMEOUTS, Cursor, ensure_schema, migrate, run, session
from etl.declaration_checks import table_problems
from etl.errors import Busy, SetupError, TableRefused
from etl.lake import CATALOG, LakeTable
from etl.pipeline import Pipeline
from etl.statements import statement

Grant = tuple[str | None, str, bool]  # to which role (None: everybody), what, and whether it may be given on


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


def publish(dsn: str, pipeline: Pipeline, table: LakeTable, name: Name, *, who: str) -> str | None:
    """Show the pipeline's rows under `name` in both sinks from one moment on; returns whose were seen until then.

    Raises SetupError, with nothing changed, where the name is somebody else's or there is nothing to show yet.
    """
    migrate(dsn)
    with _not_waited_for(name), session(dsn) as cursor:
        run(cursor, "published", "keep_others_out")
        before = pipeline_of(cursor, name)
        for one in sorted({pipeline.name, before or pipeline.name}):  # no commit of either comes between
            ledger.lock(cursor, one)
        location = table.pointer(cursor)
        if location is None:
            raise SetupError(
                f"Pipeline {pipeline.name} has no table yet", remedy=f"`sluice run {pipeline.name}`"
            )
        if before is None:
            _refuse_taken(cursor, name)
        ensure_schema(cursor, name.schema)
        run(cursor, "published", "give", {**name.row, "pipeline": pipeline.name, "who": who})
        run(cursor, "published", "give_pointer", {**name.row, "location": location})
        make_view(cursor, name, sql.Identifier(pipeline.table_schema, pipeline.table_name))
    return before


def withdraw(dsn: str, pipeline: str, name: Name) -> None:
    """Take the name out of both sinks, or raise SetupError where others' rows are seen there. No row is touched."""
    migrate(dsn)
    with _not_waited_for(name), session(dsn) as cursor:
        run(cursor, "published", "keep_others_out")
        ledger.lock(cursor, pipeline)
        if (seen := pipeline_of(cursor, name)) != pipeline:
            whose = f"shows the rows of {seen}" if seen else "is not published"
            raise SetupError(f"{name} {whose}", remedy="`SELECT * FROM sluice.published` lists all names")
        run(cursor, "published", "take", name.row)
        run(cursor, "published", "take_pointer", name.row)
        drop_view(cursor, name)


@contextmanager
def _not_waited_for(name: Name) -> Iterator[None]:
    """Busy, with nothing changed, where somebody else's transaction holds the view, or gives names, for too long."""
    try:
        yield
    except psycopg2.errors.LockNotAvailable as error:
        raise Busy(
            f"View {name} was read, or another name given, in a transaction that goes on for longer than lock_timeout"
            f" ({TIMEOUTS['lock_timeout']}). Nothing was changed",
            remedy="see who it is, in pg_locks and pg_stat_activity; then the same command again",
        ) from error


def pipeline_of(cursor: Cursor, name: Name) -> str | None:
    """Whose rows are seen under the name; None: it is not published."""
    found = run(cursor, "published", "pipeline_of", name.row).fetchone()
    return None if found is None else str(found[0])


def names_of(cursor: Cursor, pipeline: str) -> list[Name]:
    """The names under which the pipeline's rows are seen."""
    run(cursor, "published", "names_of", {"pipeline": pipeline})
    return [Name(schema=schema, name=name) for schema, name in cursor.fetchall()]


def _refuse_taken(cursor: Cursor, name: Name) -> None:
    if taken := [what for (what,) in run(cursor, "published", "taken", name.row).fetchall()]:
        raise SetupError(
            f"{name} is {' and '.join(taken)} already, and was not published by Sluice",
            remedy="publish under another name, or drop what has this one",
        )


def make_view(cursor: Cursor, name: Name, target: sql.Identifier, grants: Sequence[Grant] = ()) -> None:
    """Show the table's own columns; who might read the view before still may."""
    system = {"table": target.as_string(cursor), "system": list(SYSTEM_COLUMNS)}
    columns = [sql.Identifier(column) for (column,) in run(cursor, "published", "columns", system).fetchall()]
    create = statement(
        "published", "create_view", view=name.view, columns=sql.SQL(", ").join(columns), target=target
    )
    cursor.execute("SAVEPOINT make_view")
    try:
        cursor.execute(create)
    except psycopg2.errors.InvalidTableDefinition:  # it has other columns, or of other types
        cursor.execute("ROLLBACK TO SAVEPOINT make_view")
        grants = drop_view(cursor, name)
        cursor.execute(create)
    _grant(cursor, name, grants)


def drop_view(cursor: Cursor, name: Name) -> list[Grant]:
    """Remove the view; returns who might do what with it. TableRefused where something depends on it."""
    grants = run(cursor, "published", "grants", {"view": name.view.as_string(cursor)}).fetchall()
    try:
        cursor.execute(statement("published", "drop_view", view=name.view))
    except psycopg2.errors.DependentObjectsStillExist as error:
        raise TableRefused(
            f"View {name} can't be given other columns: {(error.diag.message_detail or str(error)).strip()}",
            remedy="drop what depends on it, the same command again, and make it anew",
        ) from error
    return grants


def _grant(cursor: Cursor, name: Name, grants: Iterable[Grant]) -> None:
    for role, privilege, may_give in grants:
        parts = {
            "privilege": sql.SQL(privilege),  # a keyword, as the catalog has it
            "view": name.view,
            "grantee": sql.Identifier(role) if role else sql.SQL("PUBLIC"),
        }
        cursor.execute(statement("published", "grant_with_option" if may_give else "grant", **parts))
