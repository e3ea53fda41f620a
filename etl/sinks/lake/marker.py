"""The marker of a pipeline's newest delivery on the lake: by it a run sees that PostgreSQL went back in time.

The marker is one small object beside the delivery manifests, which a restore of PostgreSQL does not touch, with or
without the checkpoint. It is written after each commit, and read before a run delivers anything, and again where
PostgreSQL has become another server or database meanwhile; if it could not be written, the next of these writes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import psycopg2

from etl.common.database import Cursor, row_as, transaction
from etl.common.errors import LedgerBehind, NeedsPerson, SluiceError
from etl.common.outages import raising_service_errors
from etl.common.statements import Statements
from etl.ledger.attempts import skip_numbers
from etl.sinks.lake import s3
from etl.sinks.lake.lake import TableLocation

if TYPE_CHECKING:
    from etl.pipeline import Pipeline
    from etl.sinks.lake.lake import Lake

STATEMENTS = Statements(__name__)

log = logging.getLogger("sluice")

TRIES = 5  # to write it, while others commit


@dataclass(frozen=True, kw_only=True)
class Newest:
    """A committed delivery, and the run that made it."""

    delivery_id: int
    run_id: str


def marker_of(table: TableLocation) -> str:
    """Return the URI of a table's marker."""
    return f"{table.location}/deliveries/LAST"


def places_folder(table: TableLocation) -> str:
    """Return the URI of the folder of consumers' places."""
    return f"{table.location}/consumers/"


def is_marker(uri: str, tables: Iterable[TableLocation]) -> bool:
    """Tell whether an object says how far a pipeline, or a consumer of it, has come: no metadata needs it, and it stays."""
    return any(uri == marker_of(table) or uri.startswith(places_folder(table)) for table in tables)


def read(table: TableLocation) -> Newest | None:
    """Read the marker with one request; return None where there is none."""
    return _parsed(table, s3.get(table.lake.store, marker_of(table)))


def _read_first(table: TableLocation) -> Newest | None:
    """Read the marker by Arrow's client, which a run that finds nothing new has at hand, as it has no other."""
    with raising_service_errors():
        return _parsed(table, table.lake.read(marker_of(table)))


def _parsed(table: TableLocation, text: bytes | None) -> Newest | None:
    uri = marker_of(table)
    if text is None:
        return None
    try:
        return Newest(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise NeedsPerson(
            f"{uri} is not as it was written: {text[:100]!r}",
            remedy="restore it from another version of it, or remove it; then run the same command again",
        ) from error


def _write(table: TableLocation, newest: Newest) -> None:
    s3.put(table.lake.store, marker_of(table), json.dumps(asdict(newest)).encode())


def tell(dsn: str, table: TableLocation, pipeline: str, mine: Newest) -> None:
    """Write the newest delivery to the marker: `mine`, or what others have committed since.

    A marker that names what the ledger lacks stays as it is: it tells what was lost. A warning is logged then,
    and where it fails.

    HAZARD: of two writers the slower one may be the one with the older delivery. So each looks afterwards
    whether its own is the newest. In a ledger that lacks its own it leaves the marker, which tells what was
    lost.
    """
    written = mine
    try:
        if (marked := read(table)) is not None and not _has(dsn, pipeline, marked):
            left = "delivery %s of %s is committed; %s stays as it is: it names delivery %s, which PostgreSQL has lost"
            log.warning(left, mine.delivery_id, pipeline, marker_of(table), marked.delivery_id)
            return
        for _ in range(TRIES):
            _write(table, written)
            with transaction(dsn) as cursor:
                now = _newest(cursor, pipeline, mine)
            if now is None or now == written:
                return
            written = now
    except (SluiceError, psycopg2.Error) as error:
        done = "delivery %s of %s is committed, and its marker could not be written: %s"
        log.warning(done, mine.delivery_id, pipeline, error)


def _has(dsn: str, pipeline: str, marked: Newest) -> bool:
    """Tell whether the ledger has delivered `marked`."""
    with transaction(dsn) as cursor:
        return _newest(cursor, pipeline, marked) is not None


def _newest(cursor: Cursor, pipeline: str, marked: Newest) -> Newest | None:
    """Return the ledger's newest delivery; None where it has not delivered `marked`."""
    STATEMENTS.execute(
        cursor,
        "newest_if_delivered",
        pipeline=pipeline,
        delivery_id=marked.delivery_id,
        run_id=marked.run_id,
    )
    return row_as(cursor, Newest)


def went_back(dsn: str, lake: Lake, pipeline: Pipeline) -> LedgerBehind | None:
    """Return LedgerBehind where the lake's marker names a delivery that the ledger lacks, else None.

    The number of that delivery is then given to no other. A marker that is older than the ledger, because its
    writer was killed, is brought up to date.
    """
    table = TableLocation.of(lake, pipeline.table)
    marked = _read_first(table)
    if marked is None:
        return None
    with transaction(dsn) as cursor:
        now = _newest(cursor, pipeline.name, marked)
        if now is None:
            skip_numbers(cursor, marked.delivery_id)
    if now is None:
        return _lost(table, pipeline.name, marked)
    if now != marked:
        tell(dsn, table, pipeline.name, now)
    return None


def look(dsn: str, lake: Lake, pipeline: Pipeline) -> LedgerBehind | None:
    """Return LedgerBehind where the lake's marker names a delivery that the ledger lacks, else None; change nothing."""
    table = TableLocation.of(lake, pipeline.table)
    marked = read(table)
    return None if marked is None or _has(dsn, pipeline.name, marked) else _lost(table, pipeline.name, marked)


def _lost(table: TableLocation, pipeline: str, marked: Newest) -> LedgerBehind:
    return LedgerBehind(
        f"Delivery {marked.delivery_id} of {pipeline} was committed, says {marker_of(table)}, and the ledger does not have"
        " it: PostgreSQL went back in time, or SLUICE_POSTGRES names another one",
        remedy=f"`sluice recover {pipeline}`, which puts back what the lake still has; or put the right SLUICE_POSTGRES in"
        " place",
    )


def keep_telling(dsn: str, table: TableLocation, pipeline: str, lost: Newest) -> None:
    """Write a lost delivery to the marker, unless that tells of another one that is lost; or raise.

    Call it where deliveries that came after it were put back, so that nothing else tells of it any more.
    """
    marked = read(table)
    if marked is None or _has(dsn, pipeline, marked):
        _write(table, lost)


def settle(dsn: str, table: TableLocation, pipeline: str) -> None:
    """Write the ledger's newest delivery to the marker, or remove the marker where there is none; or raise.

    Call it once nothing is lost that the marker told of.
    """
    with transaction(dsn) as cursor:
        newest = row_as(STATEMENTS.execute(cursor, "newest_delivery", pipeline=pipeline), Newest)
    if newest is not None:
        _write(table, newest)
        return
    s3.delete(table.lake.store, marker_of(table))
