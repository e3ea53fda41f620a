"""A pipeline's row in the ledger: registered with its sink, and locked by each commit."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import psycopg2

from etl.common.database import TIMEOUTS, Cursor, row_as, waiting_apart
from etl.common.errors import Busy, TableRefused
from etl.common.outcome import in_short
from etl.common.statements import Statements
from etl.ledger import names
from etl.ledger.deliveries import last_delivery

STATEMENTS = Statements(__name__)


@dataclass(frozen=True, kw_only=True)
class DeclaredSink:
    """Where and how a pipeline delivers, as it is declared now."""

    table_schema: str
    table_name: str
    replaces: bool  # each batch takes the place of all before


@dataclass(frozen=True, kw_only=True)
class PipelineRow:
    """A pipeline as the ledger has it."""

    name: str
    table_schema: str
    table_name: str
    current_stream: str | None
    replaces: bool | None  # a batch took the place of all before it; None: none has
    anew: str | None  # the command of a run that begins anew; None: a run goes on from the ledger
    consumer_lag_limit: dt.timedelta | None  # how far its consumers may be behind


@dataclass(frozen=True, kw_only=True)
class LockedPipeline:
    """Whose turn it is while the pipeline's row is locked."""

    current_stream: str | None
    lease_token: str | None  # the id of the run that may commit


def register(
    cursor: Cursor,
    pipeline: str,
    sink: DeclaredSink,
    *,
    anew: str | None,
    consumer_lag_limit: dt.timedelta | None = None,
) -> None:
    """Give the pipeline its row, and its table to nobody else, or raise TableRefused.

    `anew`: the command of a run that begins anew, None where a run goes on from the ledger. `consumer_lag_limit`: how far
    its consumers may be behind.
    """
    known = require_sink(cursor, pipeline, sink)
    wanted = (sink.table_schema, sink.table_name, anew, consumer_lag_limit)
    if known and (known.table_schema, known.table_name, known.anew, known.consumer_lag_limit) == wanted:
        return  # without a lock: the upsert would wait for a commit under way
    lock_registration(cursor)
    names.refuse_given_up(cursor, pipeline)
    _refuse_taken(cursor, pipeline, sink)
    STATEMENTS.execute(
        cursor,
        "register_pipeline",
        pipeline=pipeline,
        table_schema=sink.table_schema,
        table_name=sink.table_name,
        anew=anew,
        consumer_lag_limit=consumer_lag_limit,
    )
    require_sink(cursor, pipeline, sink)


def lock_registration(cursor: Cursor) -> None:
    """Let no other pipeline be registered, or given another name, until the transaction ends."""
    STATEMENTS.execute(cursor, "lock_registration")


def _refuse_taken(cursor: Cursor, pipeline: str, sink: DeclaredSink) -> None:
    """Raise TableRefused where another pipeline has the table."""
    table = f"{sink.table_schema}.{sink.table_name}"
    STATEMENTS.execute(
        cursor, "owner", table_schema=sink.table_schema, table_name=sink.table_name, pipeline=pipeline
    )
    for (owner,) in cursor.fetchall():
        raise TableRefused(
            f"Table {table} of pipeline {pipeline} belongs to pipeline {owner}",
            remedy=f"name another table in its sink; or, where {pipeline} is the new name of {owner},"
            f" `sluice rename {owner} {pipeline}`",
        )


def require_sink(cursor: Cursor, pipeline: str, sink: DeclaredSink) -> PipelineRow | None:
    """Return the pipeline's row, or None where it has none yet, and refuse a sink that it can't change to.

    Raises TableRefused where it has delivered to another table, or by replace and now does in another way.
    """
    known = pipeline_row(cursor, pipeline)
    if known is None or last_delivery(cursor, pipeline) is None:
        return known
    if known.replaces and not sink.replaces:
        raise TableRefused(
            f"Pipeline {pipeline} delivered by replace, and its sink now is another: rows that its batches"
            " had replaced would come back",
            remedy="declare it as Replace() again, or a new pipeline under another name and with another table",
        )
    if (known.table_schema, known.table_name) != (sink.table_schema, sink.table_name):
        raise TableRefused(
            f"Pipeline {pipeline} has delivered to {known.table_schema}.{known.table_name}; "
            f"its sink now names {sink.table_schema}.{sink.table_name}",
            remedy="name the old table, or declare a new pipeline under another name",
        )
    return known


def pipeline_row(cursor: Cursor, pipeline: str) -> PipelineRow | None:
    """Return the pipeline's row as it is, without a lock; None where there is none."""
    return row_as(STATEMENTS.execute(cursor, "pipeline_row", pipeline=pipeline), PipelineRow)


def all_names(cursor: Cursor) -> list[str]:
    """Return the names of all pipelines on record, in order."""
    return [name for (name,) in STATEMENTS.execute(cursor, "all_names").fetchall()]


def take_up(cursor: Cursor, pipeline: str) -> None:
    """Record that something of the pipeline runs, as of one that was never retired; the caller holds the row's lock."""
    STATEMENTS.execute(cursor, "take_up", pipeline=pipeline)


def skip_commits(cursor: Cursor, pipeline: str, number: int) -> None:
    """Give no commit of the pipeline a number up to this one again; wait for an open commit of it to end."""
    STATEMENTS.execute(cursor, "skip_commits", pipeline=pipeline, number=number)


def delivers_by_replace(cursor: Cursor, pipeline: str) -> None:
    """Record that the pipeline delivers by replace: from now on no batch may be delivered in another way.

    The caller holds the row's lock.
    """
    STATEMENTS.execute(cursor, "delivers_by_replace", pipeline=pipeline)


def lock(cursor: Cursor, pipeline: str) -> LockedPipeline | None:
    """Lock the pipeline's row and return it, None where there is none; wait for an open commit of it to end.

    Raises Busy where that takes longer than lock_timeout, or where somebody cancels it.
    """
    try:
        return row_as(STATEMENTS.execute(cursor, "lock_pipeline", pipeline=pipeline), LockedPipeline)
    except (psycopg2.errors.LockNotAvailable, psycopg2.errors.QueryCanceled) as error:
        raise Busy(
            f"A commit of pipeline {pipeline} is under way, and the wait for it was ended ({in_short(error)})",
            remedy="wait until it ends, then run again",
        ) from error


def lock_staged(cursor: Cursor, pipeline: str) -> LockedPipeline | None:
    """Lock and return the pipeline's row, waiting as long as a transaction of ours may take (60 min).

    A shorter wait would give up what this run has staged for another run's commit. It counts for no limit of
    this transaction, which has all of its own time afterwards. Raises Busy.
    """
    with waiting_apart(cursor, TIMEOUTS["transaction_timeout"]):
        return lock(cursor, pipeline)
