"""Lists who reads a pipeline and how far each is behind; puts a consumer's place elsewhere, and forgets consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etl.common.database import transaction
from etl.common.errors import SetupError
from etl.common.migrations import migrate
from etl.common.statements import Statements
from etl.common.wording import meant
from etl.ledger import consumers
from etl.ledger.consumers import ConsumerLag, require_name
from etl.ledger.pipelines import pipeline_row
from etl.operations.serving import lake_place
from etl.sinks.lake.lake import TableLocation

if TYPE_CHECKING:
    from etl.runs.workspace import Workspace

STATEMENTS = Statements(__name__)

START, NEWEST = "start", "newest"  # places that every pipeline has


def lags(dsn: str, pipeline: str | None = None) -> Sequence[ConsumerLag]:
    """Read how far each consumer is behind, of one pipeline or of all."""
    migrate(dsn)
    with transaction(dsn, one_snapshot=True) as cursor:
        return consumers.lags(cursor, pipeline)


def put(workspace: Workspace, pipeline: str, consumer: str, after: str) -> int:
    """Put the consumer's place behind a delivery, `start` or `newest`, and return that commit; make it where it is new.

    A run of it that is under way can't move its place any more. Raises SetupError where there is no such place.
    """
    require_name(consumer)
    dsn = workspace.services.postgres
    migrate(dsn)
    number = int(after) if after.isdecimal() and len(after) < 19 else None
    if number is None and after not in (START, NEWEST):
        raise SetupError(
            f"--after {after}: no delivery's number, {START} or {NEWEST}",
            remedy=f"`sluice deliveries {pipeline}` lists the deliveries",
        )
    with transaction(dsn) as cursor:
        record = STATEMENTS.execute(cursor, "commits", pipeline=pipeline, delivery=number).fetchone()
        if record is None:
            raise SetupError(f"Pipeline {pipeline} has never run", remedy=f"`sluice run {pipeline}`")
        newest, of_delivery = record
        commit = of_delivery if number is not None else {START: 0, NEWEST: newest}[after]
        if commit is None:
            raise SetupError(
                f"Pipeline {pipeline} has no delivery {number}",
                remedy=f"`sluice deliveries {pipeline}` lists the deliveries",
            )
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "put", pipeline=pipeline, consumer=consumer, commit=commit)
    lake_place.forget(_table_of(workspace, pipeline), consumer)
    return int(commit)


def forget(workspace: Workspace, pipeline: str, consumer: str) -> None:
    """Forget a consumer: nothing is kept for it any more. Raises SetupError where there is none."""
    dsn = workspace.services.postgres
    known = [one.consumer for one in lags(dsn, pipeline)]
    if consumer not in known:
        raise SetupError(
            f"Pipeline {pipeline} has no consumer {consumer}{meant(consumer, known)}",
            remedy=f"`sluice consumers {pipeline}` lists them",
        )
    lake_place.forget(_table_of(workspace, pipeline), consumer)
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "forget", pipeline=pipeline, consumer=consumer)


def _table_of(workspace: Workspace, pipeline: str) -> TableLocation:
    """Return the table of a pipeline on record, declared or not."""
    with transaction(workspace.services.postgres) as cursor:
        known = pipeline_row(cursor, pipeline)
    assert known is not None  # it has a consumer
    return TableLocation.of(workspace.lake, f"{known.table_schema}.{known.table_name}")
