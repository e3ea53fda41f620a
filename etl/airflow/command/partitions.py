"""Names the hours, days or months that deliveries touched, as Airflow's partition mappers read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from etl.common.database import transaction
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)

# An hour, a day or a month; the mappers take years of four digits, the first of which is not 0.
_READABLE = re.compile(r"[1-9]\d{3}-\d\d(-\d\d(T\d\d)?)?")
_BEGINNING = "0000-01-01T00:00:00"  # of a year, by which a shorter moment is filled up
MOST = 366  # a year of days: Airflow makes an event of each key in the request that ends the task, which has 5 seconds


@dataclass(frozen=True, kw_only=True)
class TouchedPartitions:
    """The partitions by time whose rows came or left."""

    keys: list[str]  # the beginnings of the newest, 2013-01-01T00:00:00
    beyond: int  # how many older ones there are
    without_key: list[str]  # the folders of those of no time, or of a year that no mapper reads


def touched_partitions(dsn: str, deliveries: Sequence[int]) -> TouchedPartitions:
    """Return the partitions of these deliveries' rows, in force or not."""
    with transaction(dsn) as cursor:
        STATEMENTS.execute(cursor, "partitions_of", deliveries=list(deliveries))
        return with_keys(folder for (folder,) in cursor.fetchall())


def with_keys(folders: Iterable[str]) -> TouchedPartitions:
    """Return the keys of partitions whose folders are called so."""
    found = sorted(folders, reverse=True)
    keys = [one + _BEGINNING[len(one) :] for one in found if _READABLE.fullmatch(one)]
    return TouchedPartitions(
        keys=keys[:MOST],
        beyond=len(keys[MOST:]),
        without_key=[one for one in found if not _READABLE.fullmatch(one)],
    )
