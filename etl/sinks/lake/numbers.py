"""Free delivery numbers: a sequence that PostgreSQL restored starts over, and the lake has what it gave out before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from etl.common.database import Cursor, transaction
from etl.common.statements import Statements
from etl.ledger.attempts import skip_numbers
from etl.sinks.lake.manifests import manifests
from etl.sinks.lake.marker import read
from etl.sinks.lake.s3 import REQUESTS

if TYPE_CHECKING:
    from etl.sinks.lake.table import Lake, LakeTable

STATEMENTS = Statements(__name__)


def are_free(cursor: Cursor) -> bool:
    """Tell whether the next number is free: this server and database gave out the last one.

    Ask in the transaction that gives it out. Each way to restore PostgreSQL is a start of the server or another
    database; so are other things, after which `free_numbers` finds nothing to skip.
    """
    return STATEMENTS.execute(cursor, "same_server").fetchone() == (True,)


def free_numbers(dsn: str, lake: Lake) -> None:
    """Skip the delivery numbers that the lake has, and note that those after them are free on this server.

    The marker alone does not tell the highest: a replay commits after deliveries of higher numbers, and the
    marker can be gone. The manifests alone do not tell it either: they can be gone, too.

    HAZARD: no transaction is open while S3 is asked. There may be millions of manifests, PostgreSQL ends what is idle
    for minutes, and all pipelines would wait for the row. So the server may be another one by the time the numbers
    are skipped; then nothing is noted, and the caller asks again whether the next is free.
    """
    with transaction(dsn) as cursor:
        server = _this_server(cursor)
        tables = STATEMENTS.execute(cursor, "pipeline_tables").fetchall()
    with ThreadPoolExecutor(REQUESTS) as readers:
        highest = max(readers.map(lambda name: _highest(lake.table(name[0])), tables), default=0)
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "lock_server")
        if highest:
            skip_numbers(cursor, highest)
        STATEMENTS.execute(cursor, "keep_server", server=server)


def _this_server(cursor: Cursor) -> str:
    found = STATEMENTS.execute(cursor, "this_server").fetchone()
    assert found is not None
    return str(found[0])


def _highest(table: LakeTable) -> int:
    """Return the highest delivery number that the marker or a manifest of a table names; 0 where there is none."""
    marked = read(table)
    numbers = [one.delivery_id for one in manifests(table)]
    return max([*numbers, marked.delivery_id if marked else 0])
