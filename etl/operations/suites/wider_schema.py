"""`sluice suggest --schema`: widens a pipeline's schema by the fields that its last deliveries had beyond it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etl.common.database import transaction
from etl.common.errors import SetupError
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.common.wording import drifted, pluralize
from etl.pipeline.ddl import ddl_name

if TYPE_CHECKING:
    from etl.pipeline import Pipeline
    from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)

_TOLD_OTHERWISE = re.compile(r"\(column \d+\)$|…$|\\[xnrtuU]")  # names that are not as the files have them


@dataclass(frozen=True, kw_only=True)
class WiderSchema:
    """A schema with all fields that were seen, and what speaks for it."""

    schema: str  # Spark DDL
    notes: tuple[str, ...]


def wider_schema(workspace: Workspace, pipeline: Pipeline, *, last: int) -> WiderSchema:
    """Add to a pipeline's schema the fields that its `last` deliveries counted as unknown, each as a string.

    Raises SetupError where they counted none.
    """
    dsn = workspace.services.postgres
    migrate(dsn)
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "unknown_fields", pipeline=pipeline.name, last=last)
        unknown: dict[str, int] = dict(cursor.fetchall())
    if not unknown:
        raise SetupError(
            f"The last {pluralize(last, 'delivery', 'deliveries')} of {pipeline.name} had no field that the"
            " schema does not name",
            remedy=f"`sluice run {pipeline.name}` counts them; lines of text do not tell them",
        )
    named = [name for name in unknown if not _TOLD_OTHERWISE.search(name)]
    added = "".join(f", {ddl_name(name)} string" for name in named)
    try_it = f"`sluice try {pipeline.name} --input FILES` shows whether they fit"
    notes = (
        *drifted(unknown, {}),
        f"a string takes any value; declare what the values are (docs/reading.md): {try_it}",
    )
    if pipeline.streams:
        notes += ("the pipeline has several streams: put each field into the schema of its own",)
    if len(named) < len(unknown):
        notes += (
            "columns without a name, or of the same, and names that are long or can't be printed are not in it",
        )
    return WiderSchema(schema=pipeline.schema.rstrip(", ") + added, notes=notes)
