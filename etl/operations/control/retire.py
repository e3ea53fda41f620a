"""Retires a pipeline that will not run again: it leaves the pages, and all that it has delivered stays."""

from __future__ import annotations

from collections.abc import Iterable

from etl.common.database import Cursor, transaction
from etl.common.errors import Busy, SetupError
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.common.wording import WHY, meant
from etl.ledger import activity, pipelines
from etl.pipeline.loader import file_of, load_files
from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)


def retire(workspace: Workspace, name: str, *, who: str, why: str) -> None:
    """Record that the pipeline will not run again, until a run of it says otherwise.

    Raises SetupError where it is still declared, is retired or never ran, and Busy while something of it runs.
    """
    if not why.strip():
        raise SetupError("Retiring a pipeline needs a reason", remedy=f"add {WHY}")
    _refuse_declared(workspace, name)
    dsn = workspace.services.postgres
    migrate(dsn)
    with transaction(dsn) as cursor:
        if pipelines.lock(cursor, name) is None:
            raise never_ran(cursor, name)
        [(at,)] = STATEMENTS.execute(cursor, "retired", pipeline=name).fetchall()
        if at is not None:
            raise SetupError(
                f"Pipeline {name} is retired since {at:%Y-%m-%d %H:%M} UTC",
                remedy="nothing more is to be done: only a run would take it up again",
            )
        refuse_running(cursor, name, "retired")
        STATEMENTS.execute(cursor, "retire", pipeline=name, who=who, why=why)


def retired(dsn: str) -> list[str]:
    """Return the names of the retired pipelines."""
    with transaction(dsn) as cursor:
        return [name for (name,) in STATEMENTS.execute(cursor, "retired_names").fetchall()]


def undeclared(workspace: Workspace, shown: Iterable[str]) -> list[str]:
    """Return which pipelines on record no file declares any more and nobody retired; none of those that are `shown`."""
    with transaction(workspace.services.postgres) as cursor:
        names = pipelines.all_names(cursor)
    if not (gone := {*names} - {*shown} - {*retired(workspace.services.postgres)}):
        return []
    return sorted(gone - {one.name for one in load_files(workspace.settings.pipelines)})


def never_ran(cursor: Cursor, name: str) -> SetupError:
    """Make the error of a name that no pipeline on record has."""
    return SetupError(
        f"No pipeline {name} has ever run{meant(name, pipelines.all_names(cursor))}",
        remedy="the page of all pipelines has their names",
    )


def refuse_running(cursor: Cursor, name: str, done: str) -> None:
    """Raise Busy while something of the pipeline runs, which can't be `done` now, such as retired."""
    if alive := [one for one in activity.running(cursor, name) if one.alive]:
        what = "It" if alive[0].kind == "stream" else f"A {alive[0].kind} of it"
        raise Busy(
            f"Pipeline {name} can't be {done} now: {what} runs on {alive[0].where}, since"
            f" {alive[0].since:%Y-%m-%d %H:%M:%S} UTC",
            remedy="end it, and what starts it; then the same command again",
        )


def _refuse_declared(workspace: Workspace, name: str) -> None:
    if file := file_of(name, workspace.settings.pipelines):
        raise SetupError(
            f"Pipeline {name} is still declared, by {file}, and its next run would take it up again",
            remedy="remove the declaration, here and wherever else the pipeline runs, then retire it",
        )
