"""Publishes a pipeline's table under a name for readers: a view in PostgreSQL and a table of the catalog, with the same
rows.

One transaction gives a name to another pipeline, so readers of either sink see all of the one or all of the other; in
PostgreSQL this holds for statements that see what is committed, which in REPEATABLE READ they do not. Every commit of
the pipeline moves the catalog's name along with the table's own (`swap_pointer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import psycopg2
from psycopg2 import sql

from etl.common.database import TIMEOUTS, Cursor, ensure_schema, transaction
from etl.common.errors import Busy, SetupError
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.common.wording import pluralize
from etl.ledger import deliveries, pipelines
from etl.ledger.pointers import CATALOG
from etl.pipeline import Pipeline
from etl.runs.heartbeat import require_sink
from etl.sinks.lake.table import LakeTable
from etl.sinks.warehouse.views import Name, drop_view, make_view, relation_kind, way_out

STATEMENTS = Statements(__name__)


def publish(
    dsn: str, pipeline: Pipeline, table: LakeTable, name: Name, *, who: str, incomplete: bool = False
) -> str | None:
    """Show the pipeline's rows under `name` in both sinks from one moment on; return whose were seen until then.

    Raises SetupError, with nothing changed, where the name is somebody else's, there is nothing to show yet,
    or, but for `incomplete`, the pipeline has not read all that the one before has.
    """
    migrate(dsn)
    with _not_waited_for(name), transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "keep_others_out")
        replaced = pipeline_of(cursor, name)
        for one in sorted({pipeline.name, replaced or pipeline.name}):  # no commit of either comes between
            pipelines.lock(cursor, one)
        location = table.pointer(cursor)
        if location is None or deliveries.last_delivery(cursor, pipeline.name) is None:
            raise SetupError(
                f"Pipeline {pipeline.name} has delivered nothing yet", remedy=f"`sluice run {pipeline.name}`"
            )
        require_sink(cursor, pipeline)
        if replaced is None:
            _refuse_taken(cursor, name)
        elif not incomplete:
            _require_all_read(cursor, pipeline.name, replaced, name)
        ensure_schema(cursor, name.schema)
        STATEMENTS.execute(
            cursor, "give", schema=name.schema, name=name.name, pipeline=pipeline.name, who=who
        )
        STATEMENTS.execute(
            cursor,
            "give_pointer",
            catalog=CATALOG,
            schema=name.schema,
            name=name.name,
            location=location,
        )
        with nullcontext() if replaced is None else way_out(name):
            make_view(cursor, name, sql.Identifier(pipeline.table_schema, pipeline.table_name))
    return replaced


def withdraw(dsn: str, pipeline: str, name: Name) -> None:
    """Take the name out of both sinks, or raise SetupError where others' rows are seen there. No row is touched.

    What has the view's name by now, and is no view, is left.
    """
    migrate(dsn)
    with _not_waited_for(name), transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "keep_others_out")
        pipelines.lock(cursor, pipeline)
        if (seen := pipeline_of(cursor, name)) != pipeline:
            whose = f"shows the rows of {seen}" if seen else "is not published"
            raise SetupError(f"{name} {whose}", remedy="`SELECT * FROM sluice.published` lists all names")
        STATEMENTS.execute(cursor, "take", schema=name.schema, name=name.name)
        STATEMENTS.execute(cursor, "take_pointer", catalog=CATALOG, schema=name.schema, name=name.name)
        if relation_kind(cursor, name) == "v":
            with way_out(name):
                drop_view(cursor, name)


@contextmanager
def _not_waited_for(name: Name) -> Iterator[None]:
    """Raise Busy, with nothing changed, where somebody else's transaction goes on for too long.

    It may hold the view, or give names.
    """
    try:
        yield
    except psycopg2.errors.LockNotAvailable as error:
        raise Busy(
            f"View {name} was read, or another name given, in a transaction that goes on for longer than lock_timeout"
            f" ({TIMEOUTS['lock_timeout']}). Nothing was changed",
            remedy="find that transaction in pg_locks and pg_stat_activity; then run the same command again",
        ) from error


def pipeline_of(cursor: Cursor, name: Name) -> str | None:
    """Name the pipeline whose rows are seen under the name; None if it is not published."""
    record = STATEMENTS.execute(cursor, "pipeline_of", schema=name.schema, name=name.name).fetchone()
    return None if record is None else str(record[0])


def _refuse_taken(cursor: Cursor, name: Name) -> None:
    STATEMENTS.execute(cursor, "taken", catalog=CATALOG, schema=name.schema, name=name.name)
    if taken := [what for (what,) in cursor.fetchall()]:
        raise SetupError(
            f"{name} is {' and '.join(taken)} already, and Sluice did not publish it",
            remedy="publish under another name, or drop what has this one",
        )


def _require_all_read(cursor: Cursor, pipeline: str, published: str, name: Name) -> None:
    """Raise SetupError where the pipeline has not read all that the one published before has delivered.

    Nothing is asked where the two have no file and no partition in common: they read other sources.
    """
    STATEMENTS.execute(cursor, "unread", pipeline=pipeline, before=published)
    [(unread, all_of_them, example, common)] = cursor.fetchall()
    if unread and common:
        raise SetupError(
            f"{pipeline} has not read {unread:,} of the {pluralize(all_of_them, 'input')}, files and"
            f" partitions, that {published} has delivered,"
            f" such as {example}; readers of {name} would miss them",
            remedy=f"`sluice run {pipeline}` first; if some of them no longer exist, or are to be left out,"
            " add --incomplete",
        )
