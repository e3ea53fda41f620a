"""Keeps how many objects of a pipeline nothing refers to, as its last sweep or audit saw them on S3.

Only these two list a bucket, so what is told between them is as old as the newer one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Literal

import psycopg2

from etl.common.database import transaction
from etl.common.errors import SluiceError
from etl.common.statements import Statements

STATEMENTS = Statements(__name__)
log = logging.getLogger("sluice")


def note(dsn: str, pipeline: str, sizes: Collection[int], *, seen_by: Literal["audit", "sweep"]) -> None:
    """Put on record the orphaned objects that were seen, given by their sizes in bytes.

    Warns where that can't be written: what the audit or the sweep has found is worth more.
    """
    try:
        with transaction(dsn) as cursor:
            STATEMENTS.execute(
                cursor, "note", pipeline=pipeline, objects=len(sizes), bytes=sum(sizes), seen_by=seen_by
            )
    except (psycopg2.Error, SluiceError) as error:
        log.warning("metrics keep the orphaned objects of %s as they were seen before: %s", pipeline, error)
