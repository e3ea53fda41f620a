"""Keeps on the lake up to where a consumer has read whose product is not in PostgreSQL.

A restore of PostgreSQL takes the consumer's place back and not its product: it would be given the same rows again, and
never those of a replay that was lost. The object of the lake, which a restore does not touch, shows it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from urllib.parse import quote

from etl.common.errors import SluiceError
from etl.sinks.lake import s3
from etl.sinks.lake.lake import TableLocation
from etl.sinks.lake.marker import places_folder

log = logging.getLogger("sluice")


@dataclass(frozen=True, kw_only=True)
class LakePlace:
    """The last commit that a consumer has read, and the delivery that it was."""

    commit_seq: int
    delivery_id: int


def uri_of(table: TableLocation, consumer: str) -> str:
    """Return the URI of the object for a consumer of the table's pipeline."""
    return f"{places_folder(table)}{quote(consumer, safe='')}"


def read(table: TableLocation, consumer: str) -> LakePlace | None:
    """Read a consumer's place from the lake with one request; return None where it has none."""
    text = s3.get(table.lake.store, uri_of(table, consumer))
    return None if text is None else LakePlace(**json.loads(text))


def write(table: TableLocation, consumer: str, place: LakePlace) -> None:
    """Write a consumer's place to the lake, or log a warning: its place in the ledger has moved."""
    uri = uri_of(table, consumer)
    try:
        s3.put(table.lake.store, uri, json.dumps(asdict(place)).encode())
    except SluiceError as error:
        warning = "consumer %s has read up to commit %s, and %s could not be written: %s"
        log.warning(warning, consumer, place.commit_seq, uri, error.seen)


def forget(table: TableLocation, consumer: str) -> None:
    """Remove a consumer's place from the lake; do nothing where it has none."""
    s3.delete(table.lake.store, uri_of(table, consumer))
