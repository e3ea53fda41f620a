"""A pipeline's row in the ledger: registered with its sink, and locked by each commit."""

from __future__ import annotations

from typing import Any

import psycopg2

from etl.common.database import TIMEOUTS, Cursor, constraint_of, row, wait_for_locks
from etl.common.errors import Busy, TableRefused
from etl.common.statements import Statements
from etl.ledger.deliveries import last_delivery

STATEMENTS = Statements(__name__)


def register(
    cursor: Cursor, pipeline: str, *, table_schema: str, table_name: str, replaces: bool, anew: str | None
) -> None:
    """Give the pipeline its row, and its table to nobody else, or raise TableRefused.

    `replaces`: each batch takes the place of all before; `anew`: the command of a run that begins anew, None
    where a run goes on from the ledger.
    """
    wanted = {"table_schema": table_schema, "table_name": table_name}
    known = require_sink(cursor, pipeline, **wanted, replaces=replaces)
    if known and {**wanted, "anew": anew}.items() <= known.items():
        return  # without a lock: the upsert would wait for a commit under way
    try:
        STATEMENTS.execute(
            cursor,
            "register_pipeline",
            pipeline=pipeline,
            table_schema=table_schema,
            table_name=table_name,
            anew=anew,
        )
    except psycopg2.IntegrityError as error:
        if constraint_of(error) != "one_table_one_pipeline":
            raise
        raise TableRefused(
            f"Table {table_schema}.{table_name} of pipeline {pipeline} belongs to another pipeline",
            remedy="name another table in its sink; `sluice status` lists the tables",
        ) from error
    require_sink(cursor, pipeline, **wanted, replaces=replaces)


def require_sink(
    cursor: Cursor, pipeline: str, *, table_schema: str, table_name: str, replaces: bool
) -> dict[str, Any] | None:
    """Return the pipeline's row, or None where it has none yet, and refuse a sink that it can't change to.

    Raises TableRefused where it has delivered to another table, or by replace and now does in another way.
    """
    known = pipeline_row(cursor, pipeline)
    if known is None or last_delivery(cursor, pipeline) is None:
        return known
    if known["replaces"] and not replaces:
        raise TableRefused(
            f"Pipeline {pipeline} delivered by replace, and its sink now is another: rows that its batches"
            " had replaced would come back",
            remedy="declare it as Replace() again, or a new pipeline under another name and with another table",
        )
    if (known["table_schema"], known["table_name"]) != (table_schema, table_name):
        raise TableRefused(
            f"Pipeline {pipeline} has delivered to {known['table_schema']}.{known['table_name']}; "
            f"its sink now names {table_schema}.{table_name}",
            remedy="name the old table, or declare a new pipeline under another name",
        )
    return known


def pipeline_row(cursor: Cursor, pipeline: str) -> dict[str, Any] | None:
    """Return the pipeline's row as it is, without a lock; None where there is none."""
    return row(STATEMENTS.execute(cursor, "pipeline_row", pipeline=pipeline))


def delivers_by_replace(cursor: Cursor, pipeline: str) -> None:
    """Record that the pipeline delivers by replace: from now on no batch may be delivered in another way.

    The caller holds the row's lock.
    """
    STATEMENTS.execute(cursor, "delivers_by_replace", pipeline=pipeline)


def lock(cursor: Cursor, pipeline: str) -> dict[str, Any] | None:
    """Lock the pipeline's row and return it, None where there is none; wait for an open commit of it to end.

    Raises Busy where that takes longer than lock_timeout.
    """
    try:
        return row(STATEMENTS.execute(cursor, "lock_pipeline", pipeline=pipeline))
    except psycopg2.errors.LockNotAvailable as error:
        raise Busy(
            f"A commit of pipeline {pipeline} is under way, for longer than lock_timeout",
            remedy="wait until it ends, then run again",
        ) from error


def lock_staged(cursor: Cursor, pipeline: str) -> dict[str, Any] | None:
    """Lock and return the pipeline's row, waiting as long as a transaction of ours may take (60 min).

    A shorter wait would give up what this run has staged for another run's commit. Raises Busy.
    """
    wait_for_locks(cursor, TIMEOUTS["transaction_timeout"])
    found = lock(cursor, pipeline)
    wait_for_locks(cursor, TIMEOUTS["lock_timeout"])
    return found
