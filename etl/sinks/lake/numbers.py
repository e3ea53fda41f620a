"""Free delivery numbers: a sequence that PostgreSQL restored starts over, and the lake has what it gave out before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from etl.common.database import Cursor, transaction
from etl.common.statements import Statements
from etl.ledger.attempts import skip_numbers
from etl.sinks.lake.lake import TableLocation
from etl.sinks.lake.manifests import manifests
from etl.sinks.lake.marker import read, went_back
from etl.sinks.lake.s3 import REQUESTS, folders, s3_client

if TYPE_CHECKING:
    from etl.pipeline import Pipeline
    from etl.sinks.lake.lake import Lake

STATEMENTS = Statements(__name__)


def are_free(cursor: Cursor, pipeline: str) -> bool:
    """Tell whether the next number is free, and nothing of the pipeline is lost: this server and database gave out the last.

    Ask in the transaction that gives it out. Each way to restore PostgreSQL is a start of the server or another
    database; so are other things, after which `free_numbers` finds nothing to skip.
    """
    return STATEMENTS.execute(cursor, "same_server", pipeline=pipeline).fetchone() == (True, True)


def free_numbers(dsn: str, lake: Lake, pipeline: Pipeline) -> None:
    """Skip the delivery numbers that the lake has, and note that those after them are free on this server.

    Raises LedgerBehind where PostgreSQL has lost the pipeline's newest delivery, which its stream alone may not show: a
    replay or a release. A run that stays up would else deliver over it.

    HAZARD: no transaction is open while S3 is asked. There may be millions of manifests, PostgreSQL ends what is idle
    for minutes, and all pipelines would wait for the row. So the server may be another one by the time that it is
    noted; then nothing is, and the caller asks again.
    """
    with transaction(dsn) as cursor:
        server = _this_server(cursor)
    if (lost := went_back(dsn, lake, pipeline)) is not None:
        raise lost
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "keep_compared", pipeline=pipeline.name, server=server)
        if are_free(cursor, pipeline.name):
            return
    highest = _highest(lake)
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "lock_server")
        if highest:
            skip_numbers(cursor, highest)
        STATEMENTS.execute(cursor, "keep_server", server=server)


def _this_server(cursor: Cursor) -> str:
    found = STATEMENTS.execute(cursor, "this_server").fetchone()
    assert found is not None
    return str(found[0])


def _highest(lake: Lake) -> int:
    """Return the highest delivery number that anything on the lake names; 0 where nothing does.

    Its folders tell of the tables: a restored ledger lacks the pipelines that are younger than the backup.
    """
    client = s3_client(lake.store)
    with ThreadPoolExecutor(REQUESTS) as readers:
        below = readers.map(lambda schema: folders(client, schema), folders(client, lake.root))
        names = [uri.removeprefix(f"{lake.root}/").replace("/", ".") for found in below for uri in found]
        return max(readers.map(lambda name: _highest_of(TableLocation.of(lake, name)), names), default=0)


def _highest_of(table: TableLocation) -> int:
    """Return the highest delivery number that the marker or a manifest of a table names; 0 where there is none.

    The marker alone does not tell it: a replay commits after deliveries of higher numbers, and the marker can be
    gone. The manifests alone do not tell it either: they can be gone, too.
    """
    marked = read(table)
    numbers = [one.delivery_id for one in manifests(table)]
    return max([*numbers, marked.delivery_id if marked else 0])
