"""The names of pipelines: one can be given another, by which all that is on record of it then goes."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from psycopg2 import sql

from etl.common.database import Cursor, row_as
from etl.common.errors import SetupError
from etl.common.statements import Statements
from etl.ledger.telemetry import alerts

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """A name that a pipeline had, and its name now."""

    was: str
    pipeline: str
    renamed_at: dt.datetime
    renamed_by: str

    def __str__(self) -> str:
        return (
            f"Pipeline {self.was} is {self.pipeline} since {self.renamed_at:%Y-%m-%d %H:%M} UTC, as"
            f" {self.renamed_by} has renamed it"
        )


def first_name(cursor: Cursor, pipeline: str) -> str:
    """Return the name that the pipeline first ran by, which the folder of its checkpoints keeps."""
    found = STATEMENTS.execute(cursor, "first_name", pipeline=pipeline).fetchone()
    return pipeline if found is None else str(found[0])


def given_up(cursor: Cursor, name: str) -> Renamed | None:
    """Return which pipeline had this name before, and has another now; None where none has."""
    return row_as(STATEMENTS.execute(cursor, "given_up", name=name), Renamed)


def refuse_given_up(cursor: Cursor, name: str, *, back_to: str | None = None) -> None:
    """Raise SetupError for the name that a pipeline had: its checkpoints may be in the folder of that name.

    The pipeline `back_to` may have its own name back.
    """
    if (renamed := given_up(cursor, name)) and renamed.pipeline != back_to:
        raise SetupError(
            f"{renamed}, and no other pipeline can be called {name}",
            remedy=f"where {name} is meant to be that one, remove its old declaration; else give it another name",
        )


def rename(cursor: Cursor, old: str, new: str, *, who: str) -> None:
    """Give a pipeline another name in every row that names it; the caller holds the lock of its own row."""
    STATEMENTS.execute(cursor, "note", old=old, who=who)
    alerts.end_all(cursor, (old, new), f"{old} was renamed to {new}")  # both may be open of one matter
    STATEMENTS.execute(cursor, "defer")
    STATEMENTS.execute(cursor, "rename_pipeline", old=old, new=new)
    for (table,) in STATEMENTS.execute(cursor, "tables").fetchall():
        STATEMENTS.execute(cursor, "carry_over", table=sql.Identifier(table), old=old, new=new)
